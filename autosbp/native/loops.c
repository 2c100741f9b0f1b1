/* Loops over tables of seconds. numpy writes each intermediate table to memory and reads it back; here sums and minima stay in
 * registers, and data that is read repeatedly in the nearest cache. Results are bitwise those of numpy: in doubles, and in an
 * order that makes no difference. Arrays are float64 (steps: int64), in C order; the loops release the interpreter's lock. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define VERSION 6 /* version of the interface, which autosbp/native/__init__.py checks */
#define BLOCK 64  /* sources per block of cheapest_ways: blocks of some hundred stops stay in the L2 cache */

#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && defined(__GLIBC__)
#define WIDEST __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define WIDEST
#endif

#define LEAST(a, b) ((a) < (b) ? (a) : (b))

/* out[a, b] = min over x of one[x, a] + two[x, b], for first <= a < end; four x at a time, to access out less often. */
WIDEST static void
least_sums_of(const double *one, const double *two, double *out, Py_ssize_t depth, Py_ssize_t rows, Py_ssize_t columns,
              Py_ssize_t first, Py_ssize_t end)
{
    for (Py_ssize_t a = first; a < end; a++) {
        double *restrict row = out + a * columns;
        Py_ssize_t x = 0;
        for (Py_ssize_t b = 0; b < columns; b++) row[b] = INFINITY;
        for (; x + 4 <= depth; x += 4) {
            const double s0 = one[x * rows + a], s1 = one[(x + 1) * rows + a];
            const double s2 = one[(x + 2) * rows + a], s3 = one[(x + 3) * rows + a];
            const double *restrict t0 = two + x * columns, *restrict t1 = t0 + columns;
            const double *restrict t2 = t1 + columns, *restrict t3 = t2 + columns;
            for (Py_ssize_t b = 0; b < columns; b++) {
                const double v0 = s0 + t0[b], v1 = s1 + t1[b], v2 = s2 + t2[b], v3 = s3 + t3[b];
                const double low = LEAST(v0, v1), high = LEAST(v2, v3), least = LEAST(low, high);
                row[b] = LEAST(least, row[b]);
            }
        }
        for (; x < depth; x++) {
            const double s0 = one[x * rows + a];
            const double *restrict t0 = two + x * columns;
            for (Py_ssize_t b = 0; b < columns; b++) {
                const double v0 = s0 + t0[b];
                row[b] = LEAST(v0, row[b]);
            }
        }
    }
}

/* out[b] = min over a of base[a] + table[a, b], minus the least of these minima, rounded down to multiples of grain. Returns the
 * least minimum. */
WIDEST static double
message_of(const double *base, const double *table, double grain, double *restrict out, Py_ssize_t rows, Py_ssize_t columns)
{
    double least = INFINITY;
    for (Py_ssize_t b = 0; b < columns; b++) out[b] = INFINITY;
    for (Py_ssize_t a = 0; a < rows; a++) {
        const double own = base[a];
        const double *restrict row = table + a * columns;
        for (Py_ssize_t b = 0; b < columns; b++) {
            const double v = own + row[b];
            out[b] = LEAST(v, out[b]);
        }
    }
    for (Py_ssize_t b = 0; b < columns; b++) least = LEAST(out[b], least);
    for (Py_ssize_t b = 0; b < columns; b++) out[b] = floor((out[b] - least) / grain) * grain;
    return least;
}

/* Columns of an arc: the variable at its other end; offset of its table with a row per value of its own variable, and with a row
 * per value of the other; offset of the message to its own variable, and to the other. */
enum { OTHER, OWN_ROWS, OTHER_ROWS, INTO, OUT, ARC };

/* Forward pass of tree-reweighted messages (autosbp/search/solvers/trws.py) over variables first to end - 1; chooses a value of
 * each. total, own: workspace for the values of any variable. */
static void
forward(int64_t first, int64_t end, const int64_t *firsts, const int64_t *arcs, const double *tables, const int64_t *begins,
        const double *costs, const double *shares, double grain, double *messages, int64_t *values, double *total, double *own)
{
    for (int64_t i = first; i < end; i++) {
        const int64_t size = begins[i + 1] - begins[i];
        const double *base = costs + begins[i];
        memcpy(total, base, sizeof(double) * size);
        memcpy(own, base, sizeof(double) * size);
        for (int64_t at = firsts[i]; at < firsts[i + 1]; at++) {
            const int64_t *arc = arcs + at * ARC;
            const double *into = messages + arc[INTO];
            const double *chosen = arc[OTHER] < i ? tables + arc[OTHER_ROWS] + values[arc[OTHER]] * size : into;
            for (int64_t x = 0; x < size; x++) total[x] += into[x];
            for (int64_t x = 0; x < size; x++) own[x] += chosen[x];
        }
        int64_t best = 0;
        double least = total[0];
        for (int64_t x = 1; x < size; x++) {
            least = LEAST(total[x], least);
            if (own[x] < own[best]) best = x;
        }
        values[i] = best;
        for (int64_t x = 0; x < size; x++) total[x] = shares[i] * (total[x] - least);
        for (int64_t at = firsts[i]; at < firsts[i + 1]; at++) {
            const int64_t *arc = arcs + at * ARC;
            if (arc[OTHER] < i) continue;
            for (int64_t x = 0; x < size; x++) own[x] = total[x] - messages[arc[INTO] + x];
            message_of(own, tables + arc[OWN_ROWS], grain, messages + arc[OUT], size,
                       begins[arc[OTHER] + 1] - begins[arc[OTHER]]);
        }
    }
}

/* Backward pass, from end - 1 to first. Sets excess (laid out as costs) to each value's cost above its variable's least, and shifts
 * (laid out as messages) to the cost moved to edges. Returns the increased lower bound. */
static double
backward(int64_t first, int64_t end, const int64_t *firsts, const int64_t *arcs, const double *tables, const int64_t *begins,
         const double *costs, const double *shares, double grain, double *messages, double *excess, double *shifts,
         double bound, double *own)
{
    for (int64_t i = end - 1; i >= first; i--) {
        const int64_t size = begins[i + 1] - begins[i];
        double *total = excess + begins[i];
        memcpy(total, costs + begins[i], sizeof(double) * size);
        for (int64_t at = firsts[i]; at < firsts[i + 1]; at++) {
            const double *into = messages + arcs[at * ARC + INTO];
            for (int64_t x = 0; x < size; x++) total[x] += into[x];
        }
        double least = total[0];
        for (int64_t x = 1; x < size; x++) least = LEAST(total[x], least);
        bound += least;
        for (int64_t x = 0; x < size; x++) total[x] -= least;
        for (int64_t at = firsts[i]; at < firsts[i + 1]; at++) {
            const int64_t *arc = arcs + at * ARC;
            if (arc[OTHER] >= i) continue;
            const int64_t others = begins[arc[OTHER] + 1] - begins[arc[OTHER]];
            for (int64_t x = 0; x < size; x++) own[x] = shares[i] * total[x] - messages[arc[INTO] + x];
            const double sent = message_of(own, tables + arc[OWN_ROWS], grain, messages + arc[OUT], size, others);
            bound += sent;
            memcpy(shifts + arc[INTO], own, sizeof(double) * size);
            for (int64_t x = 0; x < others; x++) shifts[arc[OUT] + x] = -(messages[arc[OUT] + x] + sent);
        }
    }
    return bound;
}

/* Relax all steps in order until no stop gets cheaper from any source of the block; now is (stops, BLOCK). */
WIDEST static void
settle(double *now, const int64_t *sources, const int64_t *targets, const double *seconds, Py_ssize_t num_steps)
{
    int changed = 1;
    while (changed) {
        changed = 0;
        for (Py_ssize_t step = 0; step < num_steps; step++) {
            const double *restrict from = now + sources[step] * BLOCK;
            double *restrict to = now + targets[step] * BLOCK;
            const double spent = seconds[step];
            int cheaper = 0;
            for (int at = 0; at < BLOCK; at++) {
                const double through = from[at] + spent;
                cheaper |= through < to[at];
                to[at] = LEAST(through, to[at]);
            }
            changed |= cheaper;
        }
    }
}

/* Run the passes of a pipeline's stages: advance each stage as far as its inputs have arrived, until no stage moves. ends: arrival
 * of each pass's message, -1 while unknown, plus a last entry 0 for passes without input. at, sent: workspace, one per stage. */
static void
run_all(const int64_t *firsts, const int64_t *passes, const int64_t *sources, const int64_t *follows, const double *own_s,
        const double *sends_s, int64_t num_micro, int beside, double *ends, double *starts, double *ready, int64_t *at,
        double *sent, Py_ssize_t stages)
{
    int moved = 1;
    while (moved) {
        moved = 0;
        for (Py_ssize_t stage = 0; stage < stages; stage++) {
            const int64_t end = firsts[stage + 1];
            double now = ready[stage], behind = sent[stage];
            int64_t place = at[stage];
            while (place < end) {
                const double arrived = ends[sources[place]];
                if (arrived < 0.0) break;
                const int64_t one = passes[place], row = one / num_micro;
                const double began = now > arrived ? now : arrived;
                starts[one] = began;
                now = began + own_s[row];
                behind = (now > behind ? now : behind) + sends_s[row];
                ends[one] = behind;
                place++;
                if (!(beside && place < end && follows[place])) {
                    now = behind;
                    behind = 0.0;
                }
            }
            moved |= place > at[stage];
            ready[stage] = now;
            sent[stage] = behind;
            at[stage] = place;
        }
    }
}

/* out[j] = min over d of max(band[d, j], before[j - d - 1]): the slowest chunk of the best partition up to place j, whose last
 * chunk has d places inside. */
WIDEST static void
deal_of(const double *band, const double *before, double *restrict out, Py_ssize_t depth, Py_ssize_t count)
{
    for (Py_ssize_t j = 0; j < count; j++) out[j] = INFINITY;
    for (Py_ssize_t d = 0; d < depth && d + 1 < count; d++) {
        const double *restrict own = band + d * count + d + 1, *restrict ago = before;
        double *restrict to = out + d + 1;
        for (Py_ssize_t j = 0; j < count - d - 1; j++) {
            const double v = own[j] > ago[j] ? own[j] : ago[j];
            to[j] = LEAST(v, to[j]);
        }
    }
}

/* Partition into consecutive chunks. A work item counts for a chunk if it lies inside the chunk's borders, from begins to ends
 * (sorted by ends). least[k + 1, j] is the least total work of chunks 0 to k plus prices of their borders, if chunk k ends at border
 * j, between its lowest and highest; from[k, j] is the border where chunk k begins. now: workspace, one per border. */
WIDEST static void
cut_of(const int64_t *begins, const int64_t *ends, const double *works, const double *prices, const int64_t *lowest,
       const int64_t *highest, double *least, int64_t *from, double *now, Py_ssize_t chunks, Py_ssize_t items, Py_ssize_t borders)
{
    for (Py_ssize_t k = 0; k < chunks; k++) {
        const double *own = works + k * items, *price = prices + k * borders;
        const Py_ssize_t first = k ? lowest[k - 1] : 0, last = k ? highest[k - 1] : 0;
        double *to = least + (k + 1) * borders;
        Py_ssize_t item = 0;
        memcpy(now, least + k * borders, sizeof(double) * borders);
        while (item < items && ends[item] <= first) item++;
        for (Py_ssize_t j = first + 1; j <= highest[k]; j++) {
            const Py_ssize_t end = LEAST(j, last + 1);
            for (; item < items && ends[item] == j; item++) {
                const double work = own[item];
                const Py_ssize_t behind = LEAST(begins[item], last) + 1;
                for (Py_ssize_t i = first; i < behind; i++) now[i] += work;
            }
            if (j < lowest[k]) continue;
            double lows[8], low = INFINITY;
            for (int lane = 0; lane < 8; lane++) lows[lane] = INFINITY;
            Py_ssize_t i = first, best = first;
            for (; i + 8 <= end; i += 8)
                for (int lane = 0; lane < 8; lane++) lows[lane] = LEAST(now[i + lane], lows[lane]);
            for (; i < end; i++) low = LEAST(now[i], low);
            for (int lane = 0; lane < 8; lane++) low = LEAST(lows[lane], low);
            while (best + 1 < end && now[best] > low) best++;
            from[k * borders + j] = best;
            to[j] = low + price[j];
        }
    }
}

static const char *const SHAPES = "arrays in C order whose shapes go together are expected";

/* Get a view of a C-contiguous array with ndim dims and elements of 8 bytes. */
static int
take(PyObject *array, Py_buffer *view, int ndim, const char *formats, int flags)
{
    if (PyObject_GetBuffer(array, view, PyBUF_FORMAT | PyBUF_ND | PyBUF_C_CONTIGUOUS | flags)) return -1;
    if (view->ndim != ndim || view->itemsize != 8 || !strchr(formats, view->format[0])) {
        PyErr_Format(PyExc_ValueError, "an array of %d dims, of %s, is expected", ndim, formats[0] == 'd' ? "float64" : "int64");
        PyBuffer_Release(view);
        return -1;
    }
    return 0;
}

static PyObject *
least_sums(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    PyObject *arrays[3], *done = NULL;
    Py_buffer one, two, out;
    Py_ssize_t first, end;
    if (!PyArg_ParseTuple(arguments, "OOOnn", &arrays[0], &arrays[1], &arrays[2], &first, &end)) return NULL;
    if (take(arrays[0], &one, 3, "d", 0)) return NULL;
    if (take(arrays[1], &two, 3, "d", 0)) goto free_one;
    if (take(arrays[2], &out, 3, "d", PyBUF_WRITABLE)) goto free_two;
    const Py_ssize_t count = out.shape[0], rows = out.shape[1], columns = out.shape[2], depth = one.shape[1];
    if (one.shape[0] != count || two.shape[0] != count || two.shape[1] != depth || one.shape[2] != rows ||
        two.shape[2] != columns || first < 0 || end > rows) {
        PyErr_SetString(PyExc_ValueError, SHAPES);
        goto free_out;
    }
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < count; i++)
        least_sums_of((double *)one.buf + i * depth * rows, (double *)two.buf + i * depth * columns,
                      (double *)out.buf + i * rows * columns, depth, rows, columns, first, end);
    Py_END_ALLOW_THREADS
    done = Py_NewRef(Py_None);
free_out:
    PyBuffer_Release(&out);
free_two:
    PyBuffer_Release(&two);
free_one:
    PyBuffer_Release(&one);
    return done;
}

static PyObject *
message(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    PyObject *arrays[3], *done = NULL;
    Py_buffer base, table, out;
    double grain, least;
    if (!PyArg_ParseTuple(arguments, "OOdO", &arrays[0], &arrays[1], &grain, &arrays[2])) return NULL;
    if (take(arrays[0], &base, 1, "d", 0)) return NULL;
    if (take(arrays[1], &table, 2, "d", 0)) goto free_base;
    if (take(arrays[2], &out, 1, "d", PyBUF_WRITABLE)) goto free_table;
    if (table.shape[0] != base.shape[0] || table.shape[1] != out.shape[0]) {
        PyErr_SetString(PyExc_ValueError, SHAPES);
        goto free_out;
    }
    Py_BEGIN_ALLOW_THREADS
    least = message_of(base.buf, table.buf, grain, out.buf, table.shape[0], table.shape[1]);
    Py_END_ALLOW_THREADS
    done = PyFloat_FromDouble(least);
free_out:
    PyBuffer_Release(&out);
free_table:
    PyBuffer_Release(&table);
free_base:
    PyBuffer_Release(&base);
    return done;
}

static PyObject *
cheapest_ways(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    PyObject *arrays[4], *done = NULL;
    Py_buffer sources, targets, seconds, costs;
    if (!PyArg_ParseTuple(arguments, "OOOO", &arrays[0], &arrays[1], &arrays[2], &arrays[3])) return NULL;
    if (take(arrays[0], &sources, 1, "lq", 0)) return NULL;
    if (take(arrays[1], &targets, 1, "lq", 0)) goto free_sources;
    if (take(arrays[2], &seconds, 1, "d", 0)) goto free_targets;
    if (take(arrays[3], &costs, 2, "d", PyBUF_WRITABLE)) goto free_seconds;
    const Py_ssize_t steps = sources.shape[0], stops = costs.shape[0], width = costs.shape[1];
    const int64_t *from = sources.buf, *to = targets.buf;
    const double *spent = seconds.buf;
    int fits = targets.shape[0] == steps && seconds.shape[0] == steps;
    for (Py_ssize_t at = 0; fits && at < steps; at++)
        fits = from[at] >= 0 && from[at] < stops && to[at] >= 0 && to[at] < stops && from[at] != to[at] && spent[at] >= 0.0;
    if (!fits) {
        PyErr_SetString(PyExc_ValueError, "steps of at least 0 seconds between two of the stops are expected");
        goto free_costs;
    }
    double *now = PyMem_RawMalloc(sizeof(double) * BLOCK * (stops ? stops : 1));
    if (!now) {
        PyErr_NoMemory();
        goto free_costs;
    }
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t first = 0; first < width; first += BLOCK) {
        const Py_ssize_t own = LEAST(width - first, BLOCK);
        double *of = (double *)costs.buf + first;
        for (Py_ssize_t stop = 0; stop < stops; stop++)
            for (Py_ssize_t at = 0; at < BLOCK; at++) now[stop * BLOCK + at] = at < own ? of[stop * width + at] : INFINITY;
        settle(now, from, to, spent, steps);
        for (Py_ssize_t stop = 0; stop < stops; stop++)
            memcpy(of + stop * width, now + stop * BLOCK, sizeof(double) * own);
    }
    Py_END_ALLOW_THREADS
    PyMem_RawFree(now);
    done = Py_NewRef(Py_None);
free_costs:
    PyBuffer_Release(&costs);
free_seconds:
    PyBuffer_Release(&seconds);
free_targets:
    PyBuffer_Release(&targets);
free_sources:
    PyBuffer_Release(&sources);
    return done;
}

/* Whether all numbers are in [0, end). */
static int
within(const int64_t *numbers, Py_ssize_t count, int64_t end)
{
    int fits = 1;
    for (Py_ssize_t at = 0; at < count; at++) fits &= numbers[at] >= 0 && numbers[at] < end;
    return fits;
}

static PyObject *
run_passes(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    static const char *const FORMATS[] = {"lq", "lq", "lq", "lq", "d", "d", "d", "d"};
    enum { FIRSTS, PASSES, SOURCES, FOLLOWS, OWN, SENDS, STARTS, READY, ARRAYS };
    PyObject *arrays[ARRAYS], *done = NULL;
    Py_buffer views[ARRAYS];
    Py_ssize_t num_micro;
    int beside, taken = 0;
    if (!PyArg_ParseTuple(arguments, "OOOOOOnpOO", &arrays[FIRSTS], &arrays[PASSES], &arrays[SOURCES], &arrays[FOLLOWS],
                          &arrays[OWN], &arrays[SENDS], &num_micro, &beside, &arrays[STARTS], &arrays[READY]))
        return NULL;
    for (; taken < ARRAYS; taken++)
        if (take(arrays[taken], &views[taken], 1, FORMATS[taken], taken >= STARTS ? PyBUF_WRITABLE : 0)) goto free;
    const Py_ssize_t stages = views[READY].shape[0], count = views[PASSES].shape[0], numbers = views[STARTS].shape[0];
    const int64_t *firsts = views[FIRSTS].buf;
    int fits = num_micro > 0 && views[FIRSTS].shape[0] == stages + 1 && views[SOURCES].shape[0] == count &&
               views[FOLLOWS].shape[0] == count && views[SENDS].shape[0] == views[OWN].shape[0] &&
               numbers % num_micro == 0 && numbers / num_micro == views[OWN].shape[0];
    fits = fits && within(firsts, stages + 1, count + 1) && within(views[PASSES].buf, count, numbers) &&
           within(views[SOURCES].buf, count, numbers + 1);
    if (!fits) {
        PyErr_SetString(PyExc_ValueError, SHAPES);
        goto free;
    }
    double *room = PyMem_RawMalloc(sizeof(double) * (numbers + 1 + stages));
    int64_t *at = PyMem_RawMalloc(sizeof(int64_t) * (stages + 1));
    if (!room || !at) {
        PyErr_NoMemory();
        goto free_room;
    }
    Py_BEGIN_ALLOW_THREADS
    double *ready = views[READY].buf;
    for (Py_ssize_t one = 0; one < numbers; one++) room[one] = -1.0;
    for (Py_ssize_t one = numbers; one < numbers + 1 + stages; one++) room[one] = 0.0;
    for (Py_ssize_t stage = 0; stage < stages; stage++) {
        at[stage] = firsts[stage];
        ready[stage] = 0.0;
    }
    run_all(firsts, views[PASSES].buf, views[SOURCES].buf, views[FOLLOWS].buf, views[OWN].buf, views[SENDS].buf, num_micro,
            beside, room, views[STARTS].buf, ready, at, room + numbers + 1, stages);
    Py_END_ALLOW_THREADS
    done = Py_NewRef(Py_None);
free_room:
    PyMem_RawFree(room);
    PyMem_RawFree(at);
free:
    while (taken--) PyBuffer_Release(&views[taken]);
    return done;
}

static PyObject *
cut_works(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    static const char *const FORMATS[] = {"lq", "lq", "d", "d", "lq", "lq", "d", "lq"};
    static const int DIMS[] = {1, 1, 2, 2, 1, 1, 2, 2};
    enum { BEGINS, ENDS, WORKS, PRICES, LOWEST, HIGHEST, LEASTS, FROM, ARRAYS };
    PyObject *arrays[ARRAYS], *done = NULL;
    Py_buffer views[ARRAYS];
    int taken = 0;
    if (!PyArg_ParseTuple(arguments, "OOOOOOOO", &arrays[BEGINS], &arrays[ENDS], &arrays[WORKS], &arrays[PRICES], &arrays[LOWEST],
                          &arrays[HIGHEST], &arrays[LEASTS], &arrays[FROM]))
        return NULL;
    for (; taken < ARRAYS; taken++)
        if (take(arrays[taken], &views[taken], DIMS[taken], FORMATS[taken], taken >= LEASTS ? PyBUF_WRITABLE : 0)) goto free;
    const Py_ssize_t chunks = views[WORKS].shape[0], items = views[WORKS].shape[1], borders = views[PRICES].shape[1];
    const int64_t *begins = views[BEGINS].buf, *ends = views[ENDS].buf;
    const int64_t *lowest = views[LOWEST].buf, *highest = views[HIGHEST].buf;
    int fits = borders > 0 && views[PRICES].shape[0] == chunks && views[BEGINS].shape[0] == items &&
               views[ENDS].shape[0] == items && views[LOWEST].shape[0] == chunks && views[HIGHEST].shape[0] == chunks &&
               views[LEASTS].shape[0] == chunks + 1 && views[LEASTS].shape[1] == borders && views[FROM].shape[0] == chunks &&
               views[FROM].shape[1] == borders && within(lowest, chunks, borders) && within(highest, chunks, borders) &&
               within(begins, items, borders) && within(ends, items, borders);
    for (Py_ssize_t item = 0; fits && item < items; item++)
        fits = begins[item] < ends[item] && (!item || ends[item - 1] <= ends[item]);
    if (!fits) {
        PyErr_SetString(PyExc_ValueError, SHAPES);
        goto free;
    }
    double *now = PyMem_RawMalloc(sizeof(double) * borders);
    if (!now) {
        PyErr_NoMemory();
        goto free;
    }
    Py_BEGIN_ALLOW_THREADS
    cut_of(begins, ends, views[WORKS].buf, views[PRICES].buf, lowest, highest, views[LEASTS].buf, views[FROM].buf, now, chunks,
           items, borders);
    Py_END_ALLOW_THREADS
    PyMem_RawFree(now);
    done = Py_NewRef(Py_None);
free:
    while (taken--) PyBuffer_Release(&views[taken]);
    return done;
}

static PyObject *
pass_messages(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    static const char *const FORMATS[] = {"lq", "lq", "d", "lq", "d", "d", "d", "lq", "d", "d"};
    enum { FIRSTS, ARCS, TABLES, BEGINS, COSTS, SHARES, MESSAGES, VALUES, EXCESS, SHIFTS, ARRAYS };
    PyObject *arrays[ARRAYS], *done = NULL;
    Py_buffer views[ARRAYS];
    Py_ssize_t first, end;
    int back, taken = 0;
    double grain, bound;
    if (!PyArg_ParseTuple(arguments, "OOOOOOOOOOnnpdd", &arrays[FIRSTS], &arrays[ARCS], &arrays[TABLES], &arrays[BEGINS],
                          &arrays[COSTS], &arrays[SHARES], &arrays[MESSAGES], &arrays[VALUES], &arrays[EXCESS],
                          &arrays[SHIFTS], &first, &end, &back, &grain, &bound))
        return NULL;
    for (; taken < ARRAYS; taken++)
        if (take(arrays[taken], &views[taken], taken == ARCS ? 2 : 1, FORMATS[taken], taken >= MESSAGES ? PyBUF_WRITABLE : 0))
            goto free;
    const int64_t count = views[SHARES].shape[0], num_arcs = views[ARCS].shape[0], room = views[MESSAGES].shape[0];
    const int64_t *firsts = views[FIRSTS].buf, *arcs = views[ARCS].buf, *begins = views[BEGINS].buf;
    int64_t *values = views[VALUES].buf, most = 0;
    int fits = views[FIRSTS].shape[0] == count + 1 && views[BEGINS].shape[0] == count + 1 && views[VALUES].shape[0] == count &&
               views[ARCS].shape[1] == ARC && views[EXCESS].shape[0] == views[COSTS].shape[0] &&
               views[SHIFTS].shape[0] == room && first >= 0 && end <= count && first <= end;
    fits = fits && within(firsts, count + 1, num_arcs + 1) && within(begins, count + 1, views[COSTS].shape[0] + 1);
    for (int64_t i = 0; fits && i < count; i++) {
        const int64_t size = begins[i + 1] - begins[i];
        fits = size > 0 && firsts[i] <= firsts[i + 1];
        most = size > most ? size : most;
    }
    for (int64_t i = 0; fits && i < count; i++)
        for (int64_t at = firsts[i]; fits && at < firsts[i + 1]; at++) {
            const int64_t *arc = arcs + at * ARC;
            fits = within(arc + OTHER, 1, count) && arc[OTHER] != i;
            if (!fits) break;
            const int64_t size = begins[i + 1] - begins[i], others = begins[arc[OTHER] + 1] - begins[arc[OTHER]];
            const int64_t last = views[TABLES].shape[0] - size * others + 1;
            fits = within(arc + OWN_ROWS, 2, last) && within(arc + INTO, 1, room - size + 1) &&
                   within(arc + OUT, 1, room - others + 1) &&
                   (arc[OTHER] > i || back || first <= arc[OTHER] || within(values + arc[OTHER], 1, others));
        }
    if (!fits) {
        PyErr_SetString(PyExc_ValueError, SHAPES);
        goto free;
    }
    double *space = PyMem_RawMalloc(sizeof(double) * 2 * (most ? most : 1));
    if (!space) {
        PyErr_NoMemory();
        goto free;
    }
    Py_BEGIN_ALLOW_THREADS
    if (back)
        bound = backward(first, end, firsts, arcs, views[TABLES].buf, begins, views[COSTS].buf, views[SHARES].buf, grain,
                         views[MESSAGES].buf, views[EXCESS].buf, views[SHIFTS].buf, bound, space);
    else
        forward(first, end, firsts, arcs, views[TABLES].buf, begins, views[COSTS].buf, views[SHARES].buf, grain,
                views[MESSAGES].buf, values, space, space + most);
    Py_END_ALLOW_THREADS
    PyMem_RawFree(space);
    done = PyFloat_FromDouble(bound);
free:
    while (taken--) PyBuffer_Release(&views[taken]);
    return done;
}

static PyObject *
deal_out(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    PyObject *arrays[2], *done = NULL;
    Py_buffer bands, rows;
    if (!PyArg_ParseTuple(arguments, "OO", &arrays[0], &arrays[1])) return NULL;
    if (take(arrays[0], &bands, 3, "d", 0)) return NULL;
    if (take(arrays[1], &rows, 2, "d", PyBUF_WRITABLE)) goto free_bands;
    const Py_ssize_t kinds = bands.shape[0], depth = bands.shape[1], count = bands.shape[2];
    if (rows.shape[1] != count || !kinds) {
        PyErr_SetString(PyExc_ValueError, SHAPES);
        goto free_rows;
    }
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t at = 1; at < rows.shape[0]; at++)
        deal_of((double *)bands.buf + at % kinds * depth * count, (double *)rows.buf + (at - 1) * count,
                (double *)rows.buf + at * count, depth, count);
    Py_END_ALLOW_THREADS
    done = Py_NewRef(Py_None);
free_rows:
    PyBuffer_Release(&rows);
free_bands:
    PyBuffer_Release(&bands);
    return done;
}

static PyMethodDef METHODS[] = {
    {"least_sums", least_sums, METH_VARARGS,
     "least_sums(one, two, out, first, end): out[i, a, b] = min over x of one[i, x, a] + two[i, x, b], for first <= a < end."},
    {"message", message, METH_VARARGS,
     "message(base, table, grain, out): out[b] = min over a of base[a] + table[a, b], minus the least of these minima, rounded "
     "down to multiples of grain. Returns the least minimum."},
    {"cheapest_ways", cheapest_ways, METH_VARARGS,
     "cheapest_ways(sources, targets, seconds, costs): shortest paths; relax costs, (stops, starts), by steps between stops, "
     "until no step improves one."},
    {"run_passes", run_passes, METH_VARARGS,
     "run_passes(firsts, passes, sources, follows, own_s, sends_s, num_micro, beside, starts, ready): compute the start of each "
     "pass of a pipeline's stages, and the end of each stage."},
    {"deal_out", deal_out, METH_VARARGS,
     "deal_out(bands, rows): rows[k, j] for k > 0, the slowest chunk of the best partition into k + 1 chunks up to place j; chunk k "
     "of kind k % kinds takes bands[kind, d, j] if it ends at place j with d places inside."},
    {"cut_works", cut_works, METH_VARARGS,
     "cut_works(begins, ends, works, prices, lowest, highest, least, from): rows of least after the first, the least total work of "
     "chunks up to each border that a chunk may end at, and in from the border where the last of them begins."},
    {"pass_messages", pass_messages, METH_VARARGS,
     "pass_messages(firsts, arcs, tables, begins, costs, shares, messages, values, excess, shifts, first, end, back, grain, "
     "bound): one TRW-S sweep over variables first to end - 1: forward, choosing values, or back, raising the returned bound."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, "loops", "Compiled loops over tables of seconds; see loops.c.", 0, METHODS, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit_loops(void)
{
    PyObject *module = PyModule_Create(&MODULE);
    if (module && PyModule_AddIntConstant(module, "VERSION", VERSION)) Py_CLEAR(module);
    return module;
}
