"""Stages of a pipeline: the layout problem of a stage, where a model may be cut, and cuts and schedules of what it finds."""
