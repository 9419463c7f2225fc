"""Values to protobuf messages and back; what a message by itself can be refused for.

May import pb, sampling, rpc; types and errors. Nothing else outside services imports pb.
"""
