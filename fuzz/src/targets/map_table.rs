//! Tables of Map-Collective jobs from any rank: an accepted table must not have more rows than it
//! should, and must be the same when it is serialized and read again.

use cool_map::{Keyed, List, Number, Rows, Sum, Table};

type Words = Keyed<(u16, String), List<u32>>;

fn rows<N: Number + std::fmt::Debug>(bytes: &[u8]) {
    let mut table = Rows::<N>::new(300, 3);
    // A part of a refused table may have been merged.
    let _ = table.merge_bytes(bytes);
    let mut again = table.empty();
    again.merge_bytes(&table.to_bytes(1).expect("bytes").concat()).expect("what was read can be written");
    let bits = |table: &Rows<N>| table.iter().map(|(row, n)| (row, format!("{n:?}"))).collect::<Vec<_>>();
    assert_eq!(bits(&again), bits(&table));
}

pub(crate) fn check(bytes: &[u8]) {
    rows::<i32>(bytes);
    rows::<i64>(bytes);
    rows::<f64>(bytes);
    let mut table = Words::new();
    let _ = table.merge_bytes(bytes);
    let mut again = Words::new();
    for piece in table.to_bytes(3).expect("bytes") {
        again.merge_bytes(&piece).expect("what was read can be written");
    }
    assert_eq!(again, table);
    let _ = Keyed::<String, Sum<f64>>::new().merge_bytes(bytes);
}

#[cfg(test)]
fn seeds() -> Vec<Vec<u8>> {
    let mut integers = Rows::<i64>::new(300, 3);
    [(0, [1, 2, 3]), (7, [-1, 500, 0]), (299, [1 << 40, 0, -7])]
        .iter()
        .for_each(|(row, n)| integers.add(*row, n));
    let mut reals = Rows::<f64>::new(300, 3);
    reals.add(8, &[0.5, -1.0, f64::INFINITY]);
    let words: Words = [((1, "rose".to_owned()), List(vec![1, 2, 300]))].into_iter().collect();
    let bytes = |pieces: Result<Vec<Vec<u8>>, cool_map::Error>| pieces.expect("bytes").concat();
    vec![bytes(integers.to_bytes(1)), bytes(reals.to_bytes(1)), bytes(words.to_bytes(1))]
}

target!();
