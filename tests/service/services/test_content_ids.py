"""Ids that are hashes of contents: 128 bits, of which equal ones are compared; those of earlier releases go on."""

from __future__ import annotations

import re

import pytest
from sqlalchemy import update

from autosbp import api
from autosbp.cluster.spec import load_cluster
from autosbp.costmodel.calibration import Calibration
from autosbp.service.db import Database
from autosbp.service.models import ClusterRow, ModelRow, table_of
from autosbp.service.problem_details import ProblemError
from autosbp.service.services import calibrations, clusters, models
from autosbp.service.services._insert_once import insert_content_fast
from autosbp.service.services._queries import new_id
from autosbp.service.services.content_ids import insert_content
from tests.service import documents


def model(name: str = "mlp") -> ModelRow:
    return models._row(api.load_graph({**documents.graph(), "name": name}), "graph")


def test_new_ids_have_128_bits() -> None:
    assert re.fullmatch(r"job-[0-9a-f]{32}", new_id("job"))
    row, cluster = model(), load_cluster(documents.CLUSTER)
    assert re.fullmatch(r"mod-[0-9a-f]{32}", row.id) and row.id.startswith(f"mod-{row.graph_hash}")
    assert clusters._row(cluster).id.startswith(f"clu-{cluster.cluster_hash}")


def test_what_an_earlier_release_stored_is_found_under_its_id(database: Database) -> None:
    own = database.of("lab")
    for each in (model(), clusters._row(load_cluster(documents.CLUSTER))):
        earlier = type(each)(**{column.key: getattr(each, column.key) for column in table_of(type(each)).c})
        earlier.id, earlier.content_hash, earlier.tenant = each.id[:20], None, "lab"
        with own.write() as session:
            session.add(earlier)
        found, is_new = insert_content_fast(own, each)
        assert (found.id, is_new) == (each.id[:20], False)
        with own.write() as session:
            assert insert_content(session, type(each)(id=each.id, content_hash=each.content_hash))[0].id == each.id[:20]


@pytest.mark.parametrize("is_known", [True, False])
def test_other_content_under_an_id_of_64_bits_takes_no_content_away(database: Database, is_known: bool) -> None:
    own, row, other = database.of("lab"), model(), model("other")
    collides = ModelRow(id=row.id[:20], name="other", source="graph", graph_hash=row.graph_hash, summary={})
    collides.document, collides.content_hash = other.document, other.content_hash if is_known else None
    with own.write() as session:
        session.add(collides)
    found, is_new = insert_content_fast(own, row)
    if is_known:
        assert (found.id, is_new) == (row.id, True)
    else:
        assert (found.id, is_new) == (row.id[:20], False), "its content is not that which its id was made of"


def test_other_content_with_the_same_id_is_refused_by_name(database: Database) -> None:
    own, cluster = database.of("lab"), load_cluster(documents.CLUSTER)
    calibration = Calibration.from_dict(documents.calibration())
    insert_content_fast(own, model())
    insert_content_fast(own, clusters._row(cluster))
    with own.write() as session:
        calibrations.store(session, calibration, None)
    with own.write() as session:
        for kind in (ModelRow, ClusterRow, calibrations.CalibrationRow):
            session.execute(update(kind).values(content_hash="0" * 64))
    for again in (model(), clusters._row(cluster)):
        with pytest.raises(ProblemError, match="other content") as refused:
            insert_content_fast(own, again)
        assert refused.value.status == 409 and refused.value.problem["id"] == again.id
    with own.write() as session:
        session.execute(update(ClusterRow).values(content_hash=cluster.content_hash))
    with pytest.raises(ProblemError, match="other content"), own.write() as session:
        calibrations.store(session, calibration, None)
