"""The shell of a gRPC service and the channel to one: statuses, health, limits, timeouts, calls.

May import telemetry and its own `security`; errors. Knows no message of ours.
"""
