"""`npud`: one device for many processes. `wire.py` says what goes over the socket, `server.py` serves, `client.py` is how a
process reaches it. docs/daemon.md is for users.
"""
