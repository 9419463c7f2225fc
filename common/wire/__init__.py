"""Values to protobuf messages and back; what a message by itself can be refused for.

May import pb, sampling; types and errors. Beside it only services and clients import pb.
"""
