"""The service under load: latencies of reads, posts and event streams, with many stored strategies."""
