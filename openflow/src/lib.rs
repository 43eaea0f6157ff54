//! OpenFlow 1.3 codec: bytes to values and back, no sockets.
