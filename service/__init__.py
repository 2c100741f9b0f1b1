"""The HTTP service of autosbp: models, clusters, calibrations, searches, strategies and trials under ``/v1``."""
