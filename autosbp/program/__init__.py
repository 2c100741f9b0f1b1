"""The physical program: boxings, parameter flow, buckets, gathers, activation checkpointing, stage meshes."""
