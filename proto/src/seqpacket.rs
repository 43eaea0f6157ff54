//! Unix sockets that preserve message boundaries (SOCK_SEQPACKET).
//!
//! A message is sent and received as a whole, with its descriptors, so neither side has to buffer
//! partial messages. The callers interpret the messages.

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// Maximum length of a message, in bytes. The arguments and environment of a job's ranks fit, and
/// the default socket buffer of Linux holds one.
pub const PACKET_BYTES_MAX: usize = 160 << 10;

/// Maximum number of descriptors of a message.
pub const PACKET_DESCRIPTORS_MAX: usize = 2;

/// A received message.
#[derive(Debug, Default)]
pub struct SeqPacket {
    /// Bytes of the message.
    pub bytes: Vec<u8>,
    /// Descriptors that were attached to the message.
    pub descriptors: Vec<OwnedFd>,
}

/// Returns two connected sockets.
///
/// # Errors
/// Returns the errors of `socketpair(2)`.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Connects to the process that listens at `path`.
///
/// # Errors
/// Returns the errors of `connect(2)`.
pub fn connect(path: &Path) -> io::Result<OwnedFd> {
    let socket = unconnected()?;
    rustix::io::retry_on_intr(|| rustix::net::connect(&socket, &SocketAddrUnix::new(path)?))?;
    Ok(socket)
}

/// Listens at `path`, at which no file may exist.
///
/// # Errors
/// Returns the errors of `bind(2)` and `listen(2)`.
pub fn listen(path: &Path, backlog: i32) -> io::Result<OwnedFd> {
    let socket = unconnected()?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, backlog)?;
    Ok(socket)
}

fn unconnected() -> io::Result<OwnedFd> {
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Sends a message.
///
/// # Errors
/// Returns the errors of `sendmsg(2)`, except that interrupted calls are repeated. Returns an error
/// also if the message is too long or has too many descriptors.
pub fn send(socket: impl AsFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    if bytes.len() > PACKET_BYTES_MAX {
        let text = format!("a message of {} bytes; at most {PACKET_BYTES_MAX} are accepted", bytes.len());
        return Err(io::Error::new(ErrorKind::InvalidInput, text));
    }
    if descriptors.len() > PACKET_DESCRIPTORS_MAX {
        return Err(io::Error::new(ErrorKind::InvalidInput, "a message cannot carry this many descriptors"));
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PACKET_DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let parts = [IoSlice::new(bytes)];
    rustix::io::retry_on_intr(|| rustix::net::sendmsg(&socket, &parts, &mut control, SendFlags::NOSIGNAL))?;
    Ok(())
}

/// Receives a message, or returns `None` after the peer closed the connection.
///
/// # Errors
/// Returns the errors of `recvmsg(2)`, except that interrupted calls are repeated. Returns an error
/// also if the message is too long or has too many descriptors.
pub fn receive(socket: impl AsFd) -> io::Result<Option<SeqPacket>> {
    // One more than permitted, so that an excess is detected.
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PACKET_DESCRIPTORS_MAX + 1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = vec![0; PACKET_BYTES_MAX];
    let received = rustix::io::retry_on_intr(|| {
        let mut parts = [IoSliceMut::new(&mut bytes)];
        rustix::net::recvmsg(&socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)
    });
    let message = match received {
        Ok(message) => message,
        Err(Errno::CONNRESET) => return Ok(None),
        Err(e) => return Err(e.into()),
    };
    let mut descriptors = Vec::new();
    for item in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = item {
            descriptors.extend(received);
        }
    }
    if message.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC)
        || descriptors.len() > PACKET_DESCRIPTORS_MAX
    {
        return Err(io::Error::new(
            ErrorKind::InvalidData,
            "a message is too long or has too many descriptors",
        ));
    }
    // Messages are never empty, so this is the end of the connection.
    if message.bytes == 0 {
        return Ok(None);
    }
    bytes.truncate(message.bytes);
    Ok(Some(SeqPacket { bytes, descriptors }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_stay_apart_and_bring_their_descriptors() {
        let (here, there) = pair().unwrap();
        let (first, second) = pair().unwrap();
        send(&here, b"one", &[first.as_fd(), second.as_fd()]).unwrap();
        send(&here, &vec![7; PACKET_BYTES_MAX], &[]).unwrap();
        let packet = receive(&there).unwrap().unwrap();
        assert_eq!((packet.bytes.as_slice(), packet.descriptors.len()), (&b"one"[..], 2));
        send(&packet.descriptors[0], b"through", &[]).unwrap();
        assert_eq!(receive(&second).unwrap().unwrap().bytes, b"through");
        let packet = receive(&there).unwrap().unwrap();
        assert_eq!((packet.bytes.len(), packet.descriptors.len()), (PACKET_BYTES_MAX, 0));
        drop(here);
        assert!(receive(&there).unwrap().is_none());
        assert_eq!(send(&there, b"late", &[]).unwrap_err().kind(), ErrorKind::BrokenPipe);
    }

    #[test]
    fn long_messages_and_many_descriptors_are_rejected() {
        let (here, there) = pair().unwrap();
        assert!(send(&here, &vec![7; PACKET_BYTES_MAX + 1], &[]).is_err());
        let three = [here.as_fd(), here.as_fd(), here.as_fd()];
        assert!(send(&here, b"three", &three).is_err());
        // A sender that does not check the length.
        rustix::net::send(&here, &vec![7; PACKET_BYTES_MAX + 1], SendFlags::empty()).unwrap();
        assert_eq!(receive(&there).unwrap_err().kind(), ErrorKind::InvalidData);
    }

    #[test]
    fn a_path_is_listened_at_and_connected_to() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        assert_eq!(connect(&path).unwrap_err().kind(), ErrorKind::NotFound);
        let listener = listen(&path, 1).unwrap();
        let here = connect(&path).unwrap();
        let there = rustix::net::accept(&listener).unwrap();
        send(&here, b"hello", &[]).unwrap();
        assert_eq!(receive(&there).unwrap().unwrap().bytes, b"hello");
        drop(listener);
        assert_eq!(connect(&path).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    }
}
