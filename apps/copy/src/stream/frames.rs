//! Frames between the command and the rank on its node: a length in 4 bytes, and as many bytes of
//! input.

use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// Maximum length of a frame, in bytes.
pub(crate) const FRAME_MAX_BYTES: usize = 1 << 20;

/// Reads the next bytes, and returns their number: 0 at the end. A signal does not interrupt the
/// read.
///
/// # Errors
/// If the input cannot be read.
pub fn read_some(input: &mut impl Read, bytes: &mut [u8]) -> io::Result<usize> {
    loop {
        match input.read(bytes) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            read => return read,
        }
    }
}

/// Sends all of the input to a rank, and calls `on_sent` with the length of each frame. Returns
/// without an error if the rank closes the connection, because the rank itself reports why.
///
/// # Errors
/// If the input cannot be read.
pub fn send_frames(
    input: &mut impl Read,
    mut rank: impl Write,
    mut on_sent: impl FnMut(u64),
) -> io::Result<()> {
    let mut bytes = vec![0; FRAME_MAX_BYTES];
    loop {
        let length = read_some(input, &mut bytes)?;
        // The length is at most FRAME_MAX_BYTES, so it fits.
        let head = (length as u32).to_le_bytes();
        if rank.write_all(&head).and_then(|()| rank.write_all(&bytes[..length])).is_err() || length == 0 {
            return Ok(());
        }
        on_sent(length as u64);
    }
}

/// Receives the frames of a command, in the rank on its node.
pub(crate) struct FrameReceiver(UnixStream);

impl FrameReceiver {
    pub(crate) fn connect(path: &Path) -> io::Result<FrameReceiver> {
        UnixStream::connect(path).map(FrameReceiver)
    }

    /// Returns the next frame, or `None` after the last one.
    ///
    /// # Errors
    /// If the command has exited before the end, or a frame is too long.
    pub(crate) fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut head = [0; 4];
        self.0.read_exact(&mut head)?;
        let length = u32::from_le_bytes(head) as usize;
        if length > FRAME_MAX_BYTES {
            return Err(ErrorKind::InvalidData.into());
        }
        let mut bytes = vec![0; length];
        self.0.read_exact(&mut bytes)?;
        Ok((length > 0).then_some(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn only_an_empty_frame_marks_the_end_of_the_input() {
        let (command, rank) = UnixStream::pair().unwrap();
        let bytes: Vec<u8> = (0..FRAME_MAX_BYTES + 9).map(|i| (i % 251) as u8).collect();
        let mut frames = FrameReceiver(rank);
        let input = bytes.clone();
        let feeding = thread::spawn(move || send_frames(&mut &input[..], &command, |_| ()).map(|()| command));
        let mut received = Vec::new();
        while let Some(frame) = frames.next().unwrap() {
            received.extend(frame);
        }
        assert!(received == bytes);
        drop(feeding.join().unwrap().unwrap());
        assert_eq!(frames.next().unwrap_err().kind(), ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_frame_that_is_too_long_is_refused() {
        let (mut command, rank) = UnixStream::pair().unwrap();
        command.write_all(&u32::MAX.to_le_bytes()).unwrap();
        assert_eq!(FrameReceiver(rank).next().unwrap_err().kind(), ErrorKind::InvalidData);
    }
}
