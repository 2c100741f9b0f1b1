"""Plans: strategies, pipelines, costs and the versioned JSON document."""
