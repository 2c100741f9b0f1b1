"""Small helpers independent of the project: processes, files, JSON, arrays, formatting."""
