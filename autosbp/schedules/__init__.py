"""Pipeline schedules: kinds, pass order, message-driven execution."""
