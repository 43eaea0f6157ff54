//! Distribution of work over the threads of a rank. Threads take one piece at a time, so that none
//! waits for a slower one.

use std::sync::{Mutex, PoisonError};

/// Calls `work` for each of the pieces `0..count`, on at most `threads` threads. Returns its
/// results in the order of the pieces.
pub fn map<T: Send>(threads: usize, count: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    share_out(threads, (0..count).collect(), |_, i| work(i), |_| false)
}

/// Does the same for a list of pieces. `work` receives the index of a piece, and the piece itself,
/// which it may change.
pub fn map_mut<P: Send, T: Send>(
    threads: usize,
    pieces: Vec<P>,
    work: impl Fn(usize, P) -> T + Sync,
) -> Vec<T> {
    share_out(threads, pieces, work, |_| false)
}

/// Does the same as [`map_mut`], but `work` may fail. After a failure, no further pieces are
/// started.
///
/// # Errors
/// Returns the error of the first piece of the list that fails, on any number of threads.
pub fn try_map_mut<P: Send, T: Send, E: Send>(
    threads: usize,
    pieces: Vec<P>,
    work: impl Fn(usize, P) -> Result<T, E> + Sync,
) -> Result<Vec<T>, E> {
    share_out(threads, pieces, work, Result::is_err).into_iter().collect()
}

/// Returns the results of the pieces in their order. Once `is_last` has returned true for a result,
/// no further pieces are started.
fn share_out<P: Send, T: Send>(
    threads: usize,
    pieces: Vec<P>,
    work: impl Fn(usize, P) -> T + Sync,
    is_last: impl Fn(&T) -> bool + Sync,
) -> Vec<T> {
    let threads = threads.min(pieces.len());
    // The pieces that are not started yet, or `None` once `is_last` has returned true. Pieces are
    // started in order, so all pieces before that one are completed as well.
    let left = Mutex::new(Some(pieces.into_iter().enumerate()));
    let lock = || left.lock().unwrap_or_else(PoisonError::into_inner);
    let worker = || {
        let take = || lock().as_mut()?.next();
        let done = std::iter::from_fn(take).map(|(i, piece)| {
            let result = work(i, piece);
            if is_last(&result) {
                lock().take();
            }
            (i, result)
        });
        done.collect::<Vec<_>>()
    };
    let mut done: Vec<(usize, T)> = std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(worker)).collect();
        let mine = worker();
        mine.into_iter().chain(others.into_iter().flat_map(joined)).collect()
    });
    done.sort_unstable_by_key(|(i, _)| *i);
    done.into_iter().map(|(_, result)| result).collect()
}

/// Returns the result of a thread. A panic of the thread continues in the caller.
fn joined<T>(thread: std::thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_piece_is_done_once_and_in_order_on_any_threads() {
        for threads in [1, 2, 7, 40] {
            assert_eq!(map(threads, 23, |i| i * i), (0..23).map(|i| i * i).collect::<Vec<_>>());
            let mut values = vec![0; 10];
            let lengths = map_mut(threads, values.chunks_mut(3).collect(), |i, part: &mut [usize]| {
                part.fill(i);
                part.len()
            });
            assert_eq!((lengths, values), (vec![3, 3, 3, 1], vec![0, 0, 0, 1, 1, 1, 2, 2, 2, 3]));
        }
        assert!(map(3, 0, |i| i).is_empty());
    }

    #[test]
    fn the_first_failing_piece_gives_the_error_on_any_threads() {
        let odd = |_, piece: usize| if piece.is_multiple_of(2) { Ok(piece) } else { Err(piece) };
        for threads in [1, 2, 7] {
            assert_eq!(
                try_map_mut(threads, (0..20).map(|i| i * 2).chain([41, 42, 43]).collect(), odd),
                Err(41)
            );
            assert_eq!(try_map_mut(threads, vec![4, 6], odd), Ok(vec![4, 6]));
        }
    }
}
