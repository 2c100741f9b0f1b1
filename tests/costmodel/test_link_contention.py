"""Links of stages: which ones messages and collectives go over, and what each has of them."""

from __future__ import annotations

from autosbp.costmodel.link_contention import StageLinks, bandwidth_shares


def test_a_message_goes_out_of_the_nodes_of_one_stage_into_those_of_the_other() -> None:
    four_nodes = StageLinks((4, 1), 2)
    assert four_nodes.message(0, 1) == {("out", 0, 0), ("out", 0, 1), ("in", 0, 2), ("in", 0, 3)}
    two_nodes = StageLinks((2, 2), 1)
    assert two_nodes.message(0, 1) == {("out", 1, 0), ("in", 1, 1)}  # inside a node
    assert two_nodes.message(2, 1) == {("out", 0, 1), ("in", 0, 0)}
    assert four_nodes.message(1, 1) == frozenset()


def test_a_collective_goes_both_ways_over_the_links_of_its_level_alone() -> None:
    assert StageLinks((4, 1), 2).collectives(1, 0) == {(way, 0, node) for way in ("out", "in") for node in (2, 3)}
    assert StageLinks((2, 2), 2).collectives(1, 1) == {(way, 1, device) for way in ("out", "in") for device in (2, 3)}
    assert StageLinks((2, 2), 2).collectives(1, -1) == frozenset()


def test_messages_share_the_most_contended_link_evenly() -> None:
    links = StageLinks((4, 1), 2)
    ahead, back, inside = links.message(0, 1), links.message(1, 0), links.collectives(0, 0)
    assert bandwidth_shares([ahead, back]) == [1.0, 1.0]  # links carry as much in each direction
    assert bandwidth_shares([ahead, inside]) == [0.5, 0.5]
    assert bandwidth_shares([ahead, back, inside]) == [0.5, 0.5, 0.5]
    assert bandwidth_shares([ahead, inside, links.collectives(1, 0)]) == [0.5, 0.5, 0.5]
    assert bandwidth_shares([StageLinks((4, 1), 1).message(0, 1), StageLinks((4, 1), 1).message(2, 1)]) == [0.5, 0.5]
    assert bandwidth_shares([StageLinks((2, 2), 2).message(0, 1), StageLinks((2, 2), 2).collectives(0, 1)]) == [
        1.0,
        1.0,
    ]
    assert bandwidth_shares([]) == [] and bandwidth_shares([frozenset()]) == [1.0]
