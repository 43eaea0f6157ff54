//! Buffers that are passed to the agent without a copy.

use super::Comm;
use crate::buffer::Buffer;
use crate::element::Element;
use crate::error::Error;

impl Comm {
    /// Returns a buffer of `len` zeros in registered memory, which is shared with the agent.
    ///
    /// Calls that wait send from and receive into such a buffer without a copy by this process. A
    /// copy is still made in these cases:
    ///
    /// - The call works in place, so its input is overwritten.
    /// - The call was started by [`Comm::start`], unless [`Comm::lending`] is used.
    /// - The call uses another communicator.
    /// - The call receives into a part of a buffer that does not begin and end at a multiple of the
    ///   system's page size or at an end of the buffer.
    ///
    /// A buffer occupies whole pages and may outlive its communicator. A call that fails may have
    /// overwritten a part of the memory that it receives into.
    ///
    /// ```
    /// # fn main() -> Result<(), cool::Error> {
    /// # cool::launch(|comm| -> Result<(), cool::Error> {
    /// let (mut mine, mut sum) = (comm.alloc::<f32>(1000)?, comm.alloc::<f32>(1000)?);
    /// mine.fill(1.0);
    /// comm.allreduce(&mine, &mut sum, cool::Op::Sum)?;
    /// assert_eq!(sum[999], 4.0);
    /// # Ok(())
    /// # })?.into_iter().collect()
    /// # }
    /// ```
    ///
    /// # Errors
    /// If the system does not have enough memory, or the session with the agent has ended.
    pub fn alloc<T: Element>(&self, len: usize) -> Result<Buffer<T>, Error> {
        // The system refuses sizes that exceed any memory.
        let bytes = (len as u64).saturating_mul(size_of::<T>() as u64);
        let (start, block) = self.inner.session.alloc(bytes)?;
        Ok(Buffer::new(start, len, block))
    }
}

#[cfg(test)]
#[allow(unsafe_code, reason = "a test lends arrays")]
mod tests {
    use super::super::tests::{heard_with, with_agent};
    use crate::Op;
    use cool_proto::frame::{Decoder, MAX_TO_RANK, encode};
    use cool_proto::local::{Call, Done, Running, Slice, frame::Body};
    use cool_shm::region::Region;
    use std::collections::{BTreeMap, VecDeque};
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    /// The agent's view of a rank's memory.
    struct TestAgent {
        stream: UnixStream,
        decoder: Decoder,
        regions: BTreeMap<u32, Region>,
    }

    impl TestAgent {
        fn new(stream: UnixStream, decoder: Decoder) -> TestAgent {
            TestAgent { stream, decoder, regions: BTreeMap::new() }
        }

        /// Returns the next call, after mapping all memory that was shared before it.
        fn call(&mut self) -> Call {
            loop {
                let mut descriptors = VecDeque::new();
                match heard_with(&self.stream, &mut self.decoder, &mut descriptors) {
                    Body::Map(map) => {
                        let descriptor = descriptors.pop_front().unwrap();
                        self.regions.insert(map.region, Region::open(descriptor, map.bytes).unwrap());
                    }
                    Body::Call(call) => return call,
                    _ => {}
                }
            }
        }

        fn read(&self, slice: Slice) -> Vec<u8> {
            let mut bytes = vec![0; slice.bytes as usize];
            self.regions[&slice.region].copy_out(slice.offset, &mut bytes).unwrap();
            bytes
        }

        fn write(&self, slice: Slice, bytes: &[u8]) {
            self.regions[&slice.region].copy_in(slice.offset, bytes).unwrap();
        }

        /// Stops responding during a call, as a stopped agent does.
        fn stall(&mut self) {
            self.stream.write_all(&encode(Body::Running(Running {}), MAX_TO_RANK).unwrap()).unwrap();
            self.stream.shutdown(std::net::Shutdown::Both).unwrap();
        }

        fn done(&mut self, id: u64) {
            let done = Body::Done(Done { id, ..Done::default() });
            self.stream.write_all(&encode(done, MAX_TO_RANK).unwrap()).unwrap();
        }
    }

    fn apart(a: Slice, b: Slice) -> bool {
        a.region != b.region || a.offset + a.bytes <= b.offset || b.offset + b.bytes <= a.offset
    }

    #[test]
    fn a_call_on_buffers_is_one_on_their_memory_and_copies_nothing() {
        let agent = |stream: UnixStream, decoder: Decoder| {
            let mut agent = TestAgent::new(stream, decoder);
            // The calls of the rank, in order: an allreduce of buffers, of parts of them, and of
            // other memory; a bcast; a call in place; a started call; and a started call with lent
            // buffers.
            let whole = agent.call();
            let (input, output) = (whole.input.unwrap(), whole.output.unwrap());
            assert_eq!((agent.read(input), agent.read(output)), (vec![1; 200], vec![2; 200]));
            agent.write(output, &[3; 200]);
            agent.done(whole.id);
            let part = agent.call();
            assert_eq!(part.input.unwrap(), Slice { offset: input.offset + 50, bytes: 20, ..input });
            // The part neither begins nor ends at a page boundary.
            assert!(apart(part.output.unwrap(), output));
            agent.done(part.id);
            let copied = agent.call();
            assert!(apart(copied.input.unwrap(), input) && apart(copied.output.unwrap(), output));
            agent.done(copied.id);
            let bcast = agent.call();
            assert_eq!((bcast.input, bcast.output.unwrap()), (None, output));
            agent.done(bcast.id);
            let in_place = agent.call();
            assert!(apart(in_place.input.unwrap(), output) && in_place.output.unwrap() == output);
            assert_eq!(agent.read(in_place.input.unwrap()), agent.read(output));
            agent.done(in_place.id);
            let started = agent.call();
            assert!(apart(started.input.unwrap(), input) && apart(started.output.unwrap(), output));
            agent.done(started.id);
            let lent = agent.call();
            assert_eq!((lent.input.unwrap(), lent.output.unwrap()), (input, output));
            agent.write(output, &[4; 200]);
            agent.done(lent.id);
        };
        with_agent(agent, |comm, _| {
            let (mut mine, mut sum) = (comm.alloc::<u8>(200).unwrap(), comm.alloc::<u8>(200).unwrap());
            mine.fill(1);
            sum.fill(2);
            comm.allreduce(&mine, &mut sum, Op::Sum).unwrap();
            assert_eq!(*sum, [3; 200]);
            comm.allreduce(&mine[50..70], &mut sum[7..27], Op::Sum).unwrap();
            comm.allreduce(&[0u8; 9], &mut [0; 9], Op::Sum).unwrap();
            comm.bcast(&mut sum, 0).unwrap();
            comm.allreduce_in_place(&mut sum, Op::Sum).unwrap();
            comm.start().allreduce(&mine, &mut sum, Op::Sum).unwrap().wait().unwrap();
            // SAFETY: no code accesses the arrays until the call was waited for.
            let lending = unsafe { comm.lending() };
            lending.start().allreduce(&mine, &mut sum, Op::Sum).unwrap().wait().unwrap();
            assert_eq!(*sum, [4; 200]);
        });
    }

    #[test]
    fn a_freed_buffer_stays_allocated_until_its_call_is_complete() {
        let (freed, free) = std::sync::mpsc::channel::<()>();
        let agent = move |stream: UnixStream, decoder: Decoder| {
            let mut agent = TestAgent::new(stream, decoder);
            let first = agent.call();
            free.recv().unwrap();
            let second = agent.call();
            assert!(apart(first.input.unwrap(), second.input.unwrap()));
            agent.done(second.id);
            agent.done(first.id);
        };
        with_agent(agent, |comm, _| {
            let mine = comm.alloc::<u8>(100).unwrap();
            // As in C: the memory is freed while a thread waits for a call on it.
            let mut out = [0; 100];
            let call = comm.waiting().allreduce(&mine, &mut out, Op::Sum).unwrap();
            drop(mine);
            freed.send(()).unwrap();
            comm.allreduce(&[0u8; 100], &mut [0; 100], Op::Sum).unwrap();
            call.wait().unwrap();
        });
    }

    #[test]
    fn an_agent_that_seemed_lost_cannot_change_data_later() {
        let (gone, go_on) = std::sync::mpsc::channel::<()>();
        let (wrote, written) = std::sync::mpsc::channel::<()>();
        let agent = move |stream: UnixStream, decoder: Decoder| {
            let mut agent = TestAgent::new(stream, decoder);
            let call = agent.call();
            agent.stall();
            go_on.recv().unwrap();
            agent.write(call.output.unwrap(), &[9; 100]);
            wrote.send(()).unwrap();
        };
        with_agent(agent, |comm, _| {
            let mut data = comm.alloc::<u8>(100).unwrap();
            data.fill(5);
            comm.allreduce_in_place(&mut data, Op::Sum).unwrap_err();
            gone.send(()).unwrap();
            written.recv().unwrap();
            assert_eq!(*data, [5; 100]);
        });
    }

    #[test]
    fn a_silent_agent_is_detached_from_outputs_only() {
        let (gone, go_on) = std::sync::mpsc::channel::<()>();
        let agent = move |stream: UnixStream, decoder: Decoder| {
            let mut agent = TestAgent::new(stream, decoder);
            let first = agent.call();
            agent.done(first.id);
            let call = agent.call();
            agent.stall();
            go_on.recv().unwrap();
            // The rank wrote this after the call, into the same memory.
            assert_eq!(agent.read(first.output.unwrap()), [7; 100]);
            assert_eq!(agent.read(call.input.unwrap()), [8; 100]);
        };
        with_agent(agent, |comm, _| {
            let mut buffers = [0; 3].map(|_| comm.alloc::<u8>(100).unwrap());
            let [other, mine, sum] = &mut buffers;
            comm.allreduce(mine, other, Op::Sum).unwrap();
            comm.allreduce(mine, sum, Op::Sum).unwrap_err();
            other.fill(7);
            mine.fill(8);
            gone.send(()).unwrap();
        });
    }

    #[test]
    fn a_session_that_has_ended_gives_no_memory() {
        let agent = |stream: UnixStream, decoder: Decoder| {
            let mut agent = TestAgent::new(stream, decoder);
            agent.call();
            agent.stall();
        };
        with_agent(agent, |comm, path| {
            // The region of the first buffer has room for the second one.
            let _first = comm.alloc::<u8>(100).unwrap();
            comm.barrier().unwrap_err();
            let e = comm.alloc::<u8>(100).unwrap_err().to_string();
            assert!(e.starts_with(&format!("rank 0: alloc: no agent at {}", path.display())), "{e}");
        });
    }

    #[test]
    fn memory_that_does_not_exist_is_an_error_that_names_the_rank() {
        with_agent(
            |_, _| {},
            |comm, _| {
                let e = comm.alloc::<u64>(usize::MAX).unwrap_err().to_string();
                assert!(e.starts_with("rank 0: alloc: "), "{e}");
            },
        );
    }

    #[test]
    fn buffers_outlive_their_communicator_and_begin_as_zeros() {
        let ranks = crate::embedded::Embedded { ranks: 4, ranks_per_node: 2, racks: 2 };
        let sums = crate::embedded::run(ranks, |comm| {
            let (mut mine, mut sum) =
                (comm.alloc::<f64>(10_000).unwrap(), comm.alloc::<f64>(10_000).unwrap());
            mine.fill(comm.rank() as f64);
            comm.allreduce(&mine, &mut sum, Op::Sum).unwrap();
            drop(mine);
            assert_eq!(*comm.alloc::<f64>(10_000).unwrap(), [0.0; 10_000]);
            sum
        });
        assert!(sums.unwrap().iter().all(|sum| **sum == [6.0; 10_000]));
    }
}
