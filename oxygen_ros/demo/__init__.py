"""The demo: a recording played on real topics, the node, and a live view, each a process."""
