"""Pipeline stages: the layout problem of a stage, cut points of a model, and cuts and schedules of solved layouts."""
