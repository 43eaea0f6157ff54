//! Work shared out among threads: pieces are taken one by one from a counter, so that none waits for a slower one.

use std::sync::atomic::{AtomicUsize, Ordering};

/// What each of `count` pieces comes to, in their order, done by at most `threads` threads.
pub(crate) fn map<T: Send>(threads: usize, count: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let take = || {
        let pieces = std::iter::from_fn(|| Some(next.fetch_add(1, Ordering::Relaxed)).filter(|i| *i < count));
        pieces.map(|i| (i, work(i))).collect::<Vec<_>>()
    };
    let mut done: Vec<(usize, T)> = std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads.min(count)).map(|_| scope.spawn(take)).collect();
        let mine = take();
        mine.into_iter().chain(others.into_iter().flat_map(joined)).collect()
    });
    done.sort_unstable_by_key(|(i, _)| *i);
    done.into_iter().map(|(_, result)| result).collect()
}

/// The same, where each piece comes with something of its own that it may change.
pub(crate) fn map_mut<P: Send, T: Send>(
    threads: usize,
    pieces: Vec<P>,
    work: impl Fn(usize, P) -> T + Sync,
) -> Vec<T> {
    let pieces: Vec<_> = pieces.into_iter().map(|piece| std::sync::Mutex::new(Some(piece))).collect();
    let taken = map(threads, pieces.len(), |i| {
        let piece = pieces[i].lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        piece.map(|piece| work(i, piece))
    });
    taken.into_iter().flatten().collect()
}

/// A thread's result; its panic goes on in the caller.
pub(crate) fn joined<T>(thread: std::thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_piece_is_done_once_and_in_order_on_any_number_of_threads() {
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
}
