"""A recorded bag in, a report out, through the same conversions and buffer as live."""
