"""nccl-tests output of old and new releases, tagged or broken by launchers, cut short or wrong."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from autosbp.calibration import import_nccl_log, read_nccl_log
from autosbp.cluster.spec import load_cluster
from autosbp.errors import CalibrationError, InputError

DATA = Path(__file__).parent / "data"
NEW = DATA / "new_all_reduce_8gpu.txt"
DGX = load_cluster("dgx-h100:2")
BEGIN = "# nThread 1 nGpus 8 minBytes 8 maxBytes 64 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1\n"
END = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 92.1\n"


def write(folder: Path, text: str, name: str = "all_reduce.txt") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_new_layout() -> None:
    log = read_nccl_log(NEW)
    assert log.kind == "all_reduce" and len(log.out_of_place) == len(log.in_place) == 11
    assert (log.out_of_place[0].num_bytes, log.out_of_place[0].median_s) == (32768, pytest.approx(18.66e-6))
    assert (log.in_place[5].num_bytes, log.in_place[5].median_s) == (1 << 20, pytest.approx(27.49e-6))
    assert log.bus_factor == pytest.approx(1.75, rel=1e-3)


def test_the_newest_release_says_the_same_in_text_and_in_json() -> None:
    text, written = (read_nccl_log(DATA / f"h200_all_reduce.{form}") for form in ("txt", "json"))
    assert text.kind == written.kind == "all_reduce" and text.ends and len(text.out_of_place) == 9
    for side in ("out_of_place", "in_place"):
        for one, other in zip(getattr(text, side), getattr(written, side), strict=True):
            assert one.num_bytes == other.num_bytes and one.num_repeats == other.num_repeats == 20
            assert one.median_s == pytest.approx(other.median_s, abs=0.006e-6)  # text has two decimals of a microsecond


def test_old_layout_without_root_and_with_error_column() -> None:
    log = read_nccl_log(DATA / "old_all_reduce_256gpu.txt")
    assert [point.num_bytes for point in log.out_of_place] == [2**power for power in range(25, 31)]
    assert log.out_of_place[0].median_s == pytest.approx(1464.2e-6)
    assert log.in_place[-1].median_s == pytest.approx(29411e-6)


def test_rows_of_size_zero_are_skipped() -> None:
    log = read_nccl_log(DATA / "new_reduce_scatter_2node.txt")
    assert log.kind == "reduce_scatter"
    assert [point.num_bytes for point in log.out_of_place] == [128, 256]


def test_tags_in_the_middle_of_rows_and_a_row_without_its_size() -> None:
    log = read_nccl_log(DATA / "tagged_all_reduce.txt")
    assert log.num_skipped == 1
    assert [point.num_bytes for point in log.out_of_place] == [2**power for power in range(20, 27)]
    assert log.out_of_place[0].median_s == pytest.approx(1626.5e-6)
    assert log.in_place[1].median_s == pytest.approx(416.7e-6)


@pytest.mark.parametrize("tag", ["[1,0]<stdout>:", "[0] ", "0: "])
def test_every_line_tagged_reads_as_untagged(tmp_path: Path, tag: str) -> None:
    lines = "".join(f"{tag}{line}\n" for line in NEW.read_text().splitlines())
    assert read_nccl_log(write(tmp_path, lines)) == read_nccl_log(NEW)


def test_rows_broken_over_lines_are_joined(tmp_path: Path) -> None:
    text = NEW.read_text().replace("      -1  ", "      -1\n")
    assert read_nccl_log(write(tmp_path, text)) == read_nccl_log(NEW)


def test_other_lines_of_a_log_are_passed_over(tmp_path: Path) -> None:
    noise = (
        "host:1:1 [0] NCCL INFO Connected all rings\n8 GPUs found\n# Rank 0 on h device 0 [0000:07:00] NVIDIA H100\n"
    )
    assert read_nccl_log(write(tmp_path, noise + NEW.read_text() + noise)) == read_nccl_log(NEW)


def test_complete_run_gives_its_iterations_and_tool_name(tmp_path: Path) -> None:
    text = "# Collective test starting: all_reduce_perf\n" + BEGIN + NEW.read_text() + END
    log = read_nccl_log(write(tmp_path, text, "run.log"))
    assert log.kind == "all_reduce" and log.out_of_place[0].num_repeats == 20


def test_any_cut_of_the_last_row_is_reported_as_truncated(tmp_path: Path) -> None:
    text = NEW.read_text().rstrip()
    start = text.rindex("\n") + 1
    for end in range(start + 12, len(text) - 1):  # at the last column nothing is missing
        if text[start:end].strip():
            with pytest.raises(CalibrationError, match="truncated"):
                read_nccl_log(write(tmp_path, text[:end]))


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (BEGIN + NEW.read_text(), "truncated: the run has no summary"),
        (BEGIN + END, "no rows"),
        ("", "no rows"),
        ("".join(NEW.read_text().splitlines(keepends=True)[:3]), "no rows"),
        (NEW.read_text().replace("243.71       0", "243.71       3"), "line 13: 3 wrong values at 16777216 bytes"),
        (NEW.read_text() + "# Out of bounds values : 4 FAILED\n", "out of bounds"),
        (NEW.read_text().replace("   18.66", "     nan"), "a time of nan us at 32768 bytes"),
        (2 * (BEGIN + NEW.read_text() + END), "2 runs in one file; expected one"),
        (NEW.read_text() + NEW.read_text(), "2 runs in one file"),
        (BEGIN + NEW.read_text() + END + BEGIN, "2 runs in one file"),
        (
            NEW.read_text().replace("37.78   66.11", "37.78   33.06"),
            "line 9: busbw / algbw is 0.875, but 1.750 in other rows: expected one collective",
        ),
    ],
)
def test_unusable_runs_say_why(tmp_path: Path, text: str, part: str) -> None:
    with pytest.raises(CalibrationError, match=part):
        read_nccl_log(write(tmp_path, text))


def test_collective_is_named_by_argument_or_refused(tmp_path: Path) -> None:
    path = write(tmp_path, NEW.read_text(), "log.txt")
    assert read_nccl_log(path, "all_gather").kind == "all_gather"
    with pytest.raises(InputError, match="'that of log.txt' .* file name: one of all_reduce, "):
        read_nccl_log(path)
    assert read_nccl_log(path, "broadcast").kind == "broadcast"
    with pytest.raises(InputError, match="all_reduce, all_gather"):
        read_nccl_log(path, "scan")
    with pytest.raises(InputError, match="readable"):
        read_nccl_log(tmp_path / "none.txt")


def test_a_log_without_end_does_not_fill_the_memory() -> None:
    with pytest.raises(InputError, match="path: '/dev/zero' .* at most 16777216 bytes"):
        read_nccl_log(Path("/dev/zero"))


def test_an_empty_log_is_reported_as_empty(tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match="log.txt: truncated or empty"):
        read_nccl_log(write(tmp_path, "\n", "log.txt"))


@pytest.mark.parametrize("program", ["gather_perf", "scatter_perf", "hypercube_perf", "reduce_perf", "alltoallv_perf"])
def test_logs_of_unused_collectives_are_refused(tmp_path: Path, program: str) -> None:
    text = BEGIN + f"# Collective test starting: {program}\n" + NEW.read_text() + END
    with pytest.raises(InputError, match=f"kind: '?{program.removesuffix('_perf')}'? .*all_reduce, all_gather"):
        read_nccl_log(write(tmp_path, text, "all_reduce.txt"))


def test_the_program_that_ran_counts_and_not_others_that_were_built(tmp_path: Path) -> None:
    text = "Linking ../build/all_gather_perf > ../build/all_gather_perf\n" + BEGIN
    path = write(tmp_path, text + "# Collective test starting: all_reduce_perf\n" + NEW.read_text() + END, "log.txt")
    assert read_nccl_log(path).kind == "all_reduce"


def test_logs_with_one_side_are_read_and_the_missing_side_is_named(tmp_path: Path) -> None:
    rows = [line.split() for line in NEW.read_text().splitlines()[3:]]
    text = "\n".join(" ".join([*row[:9], *["N/A"] * 4]) for row in rows)
    path = write(tmp_path, text, "all_reduce.txt")
    assert import_nccl_log(path, DGX, (1, 8)).points == import_nccl_log(NEW, DGX, (1, 8)).points
    with pytest.raises(CalibrationError, match="no in-place times"):
        import_nccl_log(path, DGX, (1, 8), in_place=True)


def test_import_fits_the_points_of_the_group_shape() -> None:
    fit = import_nccl_log(NEW, DGX, (1, 8))
    assert fit.kind == "all_reduce" and fit.group_shape == (1, 8) and len(fit.points) == 11
    assert fit.alpha_s >= 0 and fit.beta_s_per_byte > 0 and fit.median_relative_error < 0.25
    assert import_nccl_log(NEW, DGX, (1, 8), in_place=True).points != fit.points


@pytest.mark.parametrize("shape", [(1, 4), (2, 8)])
def test_a_group_shape_that_contradicts_the_bus_bandwidth_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="busbw / algbw is 1.75"):
        import_nccl_log(NEW, DGX, shape)


@pytest.mark.parametrize("shape", [(8,), (4, 2), (1, 16), (1, 1), (0, 8)])
def test_a_group_shape_outside_the_cluster_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="group_shape"):
        import_nccl_log(NEW, DGX, shape)


def test_columns_of_single_iterations_and_times_of_day_are_passed_over(tmp_path: Path) -> None:
    """Options of newer releases add four columns to each side, and a date and a time at the end."""
    rows = []
    for line in NEW.read_text().splitlines():
        words = line.split()
        if words and words[0] != "#":
            single = ["1.11", "2.22", "3.33", "4.44"]
            words = [*words[:9], *single, *words[9:], *single, "2025-11-22 13:05:59"]
            line = "  ".join(words)
        rows.append(line)
    names = "time algbw busbw #wrong i_min i_max i_p99 i_cv%"
    rows[1] = f"# size count type redop root {names} {names} timestamp"
    assert read_nccl_log(write(tmp_path, "\n".join(rows) + "\n")) == read_nccl_log(NEW)


def test_time_of_the_processor_is_read_where_it_was_asked_for(tmp_path: Path) -> None:
    text = NEW.read_text().replace(" time ", " cputime ")
    assert read_nccl_log(write(tmp_path, text)) == read_nccl_log(NEW)


def devices(groups: int) -> str:
    ranks = "".join(
        f"#  Rank {rank:2d} Group {rank % groups:2d} Pid {rank + 900} on  h{rank // groups} device {rank % 8:2d} [0x07] H100\n"
        for rank in range(2 * groups)
    )
    return "# Using devices\n" + ranks


def two_ranks() -> str:
    """Rows as of groups of two, whose busbw is algbw."""
    lines = []
    for line in NEW.read_text().splitlines():
        words = line.split()
        if words and words[0] != "#":
            words[7], words[11] = words[6], words[10]
        lines.append("  ".join(words))
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(("head", "num_groups"), [("", 1), (devices(1), 1), (devices(2), 2), (devices(8), None)])
def test_a_log_of_fewer_groups_than_share_a_link_is_not_what_all_at_once_take(
    tmp_path: Path, head: str, num_groups: int | None
) -> None:
    path = write(tmp_path, head + two_ranks())
    assert import_nccl_log(path, DGX, (2, 1)).num_groups == num_groups
    assert import_nccl_log(path, DGX, (2, 1), num_groups=8).num_groups is None


def test_groups_inside_a_node_have_their_own_links(tmp_path: Path) -> None:
    path = write(tmp_path, two_ranks())
    assert import_nccl_log(path, DGX, (1, 2)).num_groups is None


def test_json_results_have_the_number_of_groups(tmp_path: Path) -> None:
    sides = [{"time": 9.0, "alg_bw": size / 9e3, "bus_bw": size / 18e3, "nwrong": 0.0} for size in (1024, 4096, 16384)]
    rows = [{"size": int(one["alg_bw"] * 9e3 + 0.5), "out_of_place": one, "in_place": one} for one in sides]
    config = {"iterations": 20, "devices": [{"rank": rank, "group": rank % 2} for rank in range(4)]}
    document = {"args": ["all_gather_perf"], "config": config, "results": rows, "out_of_bounds": {"count": 0}}
    assert read_nccl_log(write(tmp_path, json.dumps(document))).num_groups == 2


def test_milliseconds_are_told_by_size_over_time() -> None:
    """The header does not say the unit; ranks list themselves between the lines."""
    log = read_nccl_log(DATA / "milliseconds_all_reduce.txt")
    assert [point.num_bytes for point in log.out_of_place] == [2**power for power in range(20, 25)]
    assert log.out_of_place[0].median_s == pytest.approx(2.059e-3) and log.in_place[-1].median_s == pytest.approx(
        17.165e-3
    )
    fit = import_nccl_log(DATA / "milliseconds_all_reduce.txt", load_cluster("dgx-h100:2x1"), (2, 1))
    assert 0.4e-3 < fit.alpha_s < 0.8e-3  # a ring of two has two steps: 1 ms or more in all
    assert 1 / fit.beta_s_per_byte == pytest.approx(1e9, rel=0.2)


@pytest.mark.parametrize("algbw", ["18.66", "0.5", "inf"])
def test_a_time_that_is_neither_unit_is_refused_with_its_line(tmp_path: Path, algbw: str) -> None:
    path = write(tmp_path, NEW.read_text().replace("18.66    1.76", f"18.66   {algbw}"))
    with pytest.raises(CalibrationError, match=rf"line 4: algbw is {algbw} GB/s, but size / time 1.756 GB/s if in us"):
        read_nccl_log(path)


def test_documents_are_held_to_size_over_time(tmp_path: Path) -> None:
    document = json.loads((DATA / "h200_all_reduce.json").read_text())
    document["results"][2]["out_of_place"]["time"] *= 1.2
    with pytest.raises(CalibrationError, match=r"results\[2\]: algbw is"):
        read_nccl_log(write(tmp_path, json.dumps(document)))


def test_columns_that_the_header_has_and_rows_leave_blank() -> None:
    log = read_nccl_log(DATA / "alltoall_blank_redop.txt")
    assert log.kind == "all_to_all" and len(log.out_of_place) == len(log.in_place) == 6
    assert (log.out_of_place[0].num_bytes, log.out_of_place[0].median_s) == (32, pytest.approx(85.21e-6))
    assert (log.in_place[-1].num_bytes, log.in_place[-1].median_s) == (8589934592, pytest.approx(44326.0e-6))
    assert import_nccl_log(DATA / "alltoall_blank_redop.txt", DGX, (1, 8)).kind == "all_to_all"


def test_logs_of_rccl_tests_with_in_place_columns_only() -> None:
    """Its device list is cut: one of eight devices."""
    path = DATA / "rccl_inplace_only_broadcast.txt"
    log = read_nccl_log(path)
    assert log.kind == "broadcast" and not log.out_of_place and len(log.in_place) == 5
    assert (log.in_place[0].num_bytes, log.in_place[0].median_s) == (1 << 20, pytest.approx(40e-6))
    assert import_nccl_log(path, DGX, (1, 8), in_place=True).points == log.in_place
    with pytest.raises(CalibrationError, match="no out-of-place times; it has in-place times: add --in-place"):
        import_nccl_log(path, DGX, (1, 8))


def test_marked_errors_are_wrong_results(tmp_path: Path) -> None:
    """Releases without a count of wrong values print an error, with a star where it exceeds the tolerance."""
    old = (DATA / "old_all_reduce_256gpu.txt").read_text()
    assert len(read_nccl_log(write(tmp_path, old.replace("   N/A", " 4e-07"))).in_place) == 6
    with pytest.raises(CalibrationError, match="line 8: an error of 4e-02"):
        read_nccl_log(write(tmp_path, old.replace("62.71    N/A", "62.71  4e-02*")))


def test_colours_prefixes_and_messages_of_other_ranks(tmp_path: Path) -> None:
    lines = NEW.read_text().splitlines()
    lines[4] = lines[4].replace("-1", "-1node-3:21:27 [0] NCCL WARN Call to ibv_modify_qp failed\n")
    lines[6] = lines[6].replace("-1", "-1\n[1,3]<stderr>:libibverbs: Warning: no driver\n")
    text = "".join(f"\x1b[32m2024-05-01T12:00:00.123Z pod-0 | \x1b[0m{line}\r\n" for line in lines[:4])
    path = write(tmp_path, text + "\n".join(lines[4:]))
    assert read_nccl_log(path) == read_nccl_log(NEW)


@pytest.mark.parametrize("separator", [",", "; "])
def test_a_table_with_separators(tmp_path: Path, separator: str) -> None:
    lines = [
        line.replace("#  ", "") for line in NEW.read_text().splitlines() if "out-of" not in line and "(B)" not in line
    ]
    path = write(tmp_path, "\n".join(separator.join(line.split()) for line in lines))
    assert read_nccl_log(path) == read_nccl_log(NEW)


def rccl_records() -> list[dict[str, object]]:
    log, records = read_nccl_log(NEW), []
    for in_place, points in enumerate((log.out_of_place, log.in_place)):
        for point in points:
            rate = point.num_bytes / point.median_s / 1e9
            records.append({
                "numCycle": 0, "name": "AllReduce", "nodes": 2, "ranks": 8, "ranksPerNode": 4, "gpusPerRank": 1,
                "size": point.num_bytes, "type": "float", "redop": "sum", "inPlace": in_place,
                "time": point.median_s * 1e6, "algBw": rate, "busBw": 1.75 * rate, "wrong": 0,
            })  # fmt: skip
    return records


@pytest.mark.parametrize("form", ["csv", "json", "lines"])
def test_records_of_rccl_tests(tmp_path: Path, form: str) -> None:
    records = rccl_records()
    csv = "\n".join(",".join(map(str, each)) for each in [records[0], *(record.values() for record in records)])
    texts = {"csv": csv, "json": json.dumps(records), "lines": "\n".join(map(json.dumps, records))}
    path = write(tmp_path, texts[form], "run.out")
    log = read_nccl_log(path)
    assert log.kind == "all_reduce" and log.out_of_place[5].median_s == pytest.approx(27.76e-6) and not log.ends
    assert import_nccl_log(path, DGX, (2, 4)).group_shape == (2, 4)
    with pytest.raises(InputError, match="4, 4 ranks on its 2 hosts"):
        import_nccl_log(path, DGX, (1, 8))


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (("sum,0,18.66", "sum,0,fast"), "line 2: numbers are expected"),
        ((",0\n", ",3\n"), "line 2: 3 wrong values"),
        (("time", "t"), "line 2: the field time is missing"),
        (("\n0,", "\n"), "line 2: truncated: 13 columns; 14 are expected"),
    ],
)
def test_unusable_records_say_why(tmp_path: Path, change: tuple[str, str], part: str) -> None:
    records = rccl_records()
    records[0]["time"] = 18.66
    csv = "\n".join(",".join(map(str, each)) for each in [records[0], *(record.values() for record in records)])
    with pytest.raises(CalibrationError, match=part):
        read_nccl_log(write(tmp_path, csv.replace(*change, 1)))


def listed(hosts: Sequence[str]) -> str:
    """A device list, one rank for each entry."""
    counts: Counter[str] = Counter()
    text = "# Using devices\n"
    for rank, host in enumerate(hosts):
        text += f"#  Rank {rank:2d} Pid {rank + 900} on {host:>10} device {counts[host]:2d} [0x07] H100\n"
        counts[host] += 1
    return text


@pytest.mark.parametrize(
    ("hosts", "shape", "part"),
    [
        (["a"] * 4, (1, 8), "line 2 on has 4 ranks a group"),
        (["a"] * 4 + ["b"] * 4, (1, 8), "4, 4 ranks on its 2 hosts"),
        (["a"] * 8, (2, 4), "8 ranks on its 1 hosts"),
        (["a"] * 6 + ["b"] * 2, (2, 4), "2, 6 ranks on its 2 hosts"),
    ],
)
def test_a_group_shape_that_contradicts_the_device_list_is_refused(
    tmp_path: Path, hosts: list[str], shape: tuple[int, int], part: str
) -> None:
    with pytest.raises(InputError, match=part):
        import_nccl_log(write(tmp_path, listed(hosts) + NEW.read_text()), DGX, shape)


@pytest.mark.parametrize(("hosts", "shape"), [(["a"] * 4 + ["b"] * 4, (2, 4)), (["a"] * 8, (1, 8)), (["a"], (1, 8))])
def test_a_group_shape_as_listed_is_taken_and_an_excerpt_of_the_list_too(
    tmp_path: Path, hosts: list[str], shape: tuple[int, int]
) -> None:
    begin = BEGIN if len(hosts) == 1 else ""
    path = write(tmp_path, begin + listed(hosts) + NEW.read_text() + END)
    assert import_nccl_log(path, DGX, shape).group_shape == shape


def test_hosts_of_one_name_are_not_counted(tmp_path: Path) -> None:
    text = listed(["localhost"] * 8).replace("device  4", "device  0")
    assert import_nccl_log(write(tmp_path, text + NEW.read_text()), DGX, (2, 4)).group_shape == (2, 4)
