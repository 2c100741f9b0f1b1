"""Exports of plans to other trainers: loss in step time, and checks by the trainers' own parsers."""
