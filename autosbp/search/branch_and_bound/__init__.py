"""Branch and bound over pipeline structures, microbatch sizes, parameter sharding and activation checkpointing."""
