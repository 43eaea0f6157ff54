//! The same result also if ranks are lost on the way, or all of them and a later run goes on.

use crate::runs::{Outcome, PARTS, Whole, clustering, join, loading, noise, rank, whole, write_bytes};
use cool::embedded::Embedded;
use cool_kmeans::options::Clustering;
use cool_kmeans::peer_ranks::{Peers, surviving};
use cool_kmeans::point_share::{Loading, Share};
use cool_kmeans::progress::{Iteration, Progress, Watch};
use cool_kmeans::{npy, visual_words};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;

const LAYOUT: Embedded = Embedded { ranks: 6, ranks_per_node: 2, racks: 2 };

/// Points as bytes and as real numbers, which take different ways.
fn inputs(folder: &std::path::Path) -> [PathBuf; 2] {
    let (n, dims) = (300, 9);
    let values = noise(n * dims, 256);
    let [bytes, reals] = ["bytes.npy", "reals.npy"].map(|name| folder.join(name));
    write_bytes(&bytes, &values.iter().map(|v| *v as u8).collect::<Vec<_>>(), dims);
    npy::write(&reals, &values.iter().map(|v| *v as f64 / 7.0).collect::<Vec<_>>(), dims).expect("written");
    [bytes, reals]
}

/// What the survivors come to when some ranks leave before loading, or after some iterations.
pub(crate) fn with_losses(
    layout: &Embedded,
    loading: &Loading,
    how: &Clustering,
    losses: &[(usize, Option<usize>)],
) -> Whole {
    let rank = |comm: cool::Comm| -> Option<Outcome> {
        let watch = match losses.iter().find(|(lost, _)| *lost == comm.rank()) {
            Some((_, last)) => Lost { after: Some((*last)?) },
            None => Lost { after: None },
        };
        // It does as the others do until it is gone. Others may be gone before it.
        catch_unwind(AssertUnwindSafe(|| survivor(comm, loading, how, &watch))).ok()
    };
    join(cool::embedded::run(layout.clone(), rank).expect("agents start").into_iter().flatten().collect())
}

fn survivor(comm: cool::Comm, loading: &Loading, how: &Clustering, watch: &dyn Watch) -> Outcome {
    let (mut share, mut progress) = (None, Progress::new());
    let (clustered, found) = surviving(comm, PARTS, |peers| {
        let share = Share::renew(&mut share, peers, loading, watch)?;
        let clustered = share.cluster(peers, how, watch, &mut progress)?;
        visual_words::find(peers, share, &clustered, 3, 4).map(|found| (clustered, found))
    })?;
    let share = share.take().ok_or_else(|| cool_kmeans::Error::Option("no share".into()))?;
    Ok((share, clustered, found))
}

/// Ends its rank, without any more words, after an iteration.
struct Lost {
    after: Option<usize>,
}

impl Watch for Lost {
    fn loading(&self, _: u64) {}

    fn loaded(&self, _: u64) {}

    fn iteration(&self, iteration: &Iteration) {
        if self.after == Some(iteration.number) {
            resume_unwind(Box::new("lost"));
        }
    }
}

/// All but how many points moved, of which those know nothing that were read anew.
pub(crate) fn essence(run: &Whole) -> impl PartialEq + std::fmt::Debug + '_ {
    let moved: Vec<usize> = run.moved.iter().map(|(_, centroids)| *centroids).collect();
    (&run.centroids, &run.real, &run.labels, &run.sizes, &run.inertia, moved, run.converged)
}

#[test]
fn whichever_ranks_are_lost_whenever_the_others_end_as_if_nothing_had_happened() {
    let folder = tempfile::tempdir().expect("a folder");
    for path in inputs(folder.path()) {
        let (loading, how) = (loading(&[path], 0), clustering(5, 1));
        let undisturbed = whole(LAYOUT.ranks, &loading, &how);
        for losses in [
            &[(0, Some(3))][..],
            &[(5, Some(1))],
            &[(2, None)],
            &[(0, None), (3, None)],
            &[(0, Some(2)), (1, Some(2)), (4, Some(5))],
            &[(1, Some(1)), (2, Some(2)), (3, Some(3)), (4, Some(4)), (5, Some(5))],
        ] {
            let found = with_losses(&LAYOUT, &loading, &how, losses);
            assert_eq!(essence(&found), essence(&undisturbed), "{losses:?}");
        }
    }
}

#[test]
fn a_later_run_goes_on_from_the_checkpoint_on_any_number_of_ranks() {
    let folder = tempfile::tempdir().expect("a folder");
    for path in inputs(folder.path()) {
        let (loading, how) = (loading(&[path], 0), clustering(5, 1));
        let undisturbed = whole(2, &loading, &how);
        let checkpoint = folder.path().join("run.checkpoint");
        let how = Clustering { checkpoint: Some(checkpoint.clone()), resume: true, ..how };
        // Without a checkpoint it begins at the beginning.
        let first = whole(3, &loading, &Clustering { iterations: 3, ..how.clone() });
        assert_eq!(first.inertia[..], undisturbed.inertia[..4]);
        assert_eq!(essence(&whole(4, &loading, &how)), essence(&undisturbed));
        // And once more from its end.
        assert_eq!(essence(&whole(1, &loading, &how)), essence(&undisturbed));
        assert!(!folder.path().join("run.checkpoint.new").exists());
        std::fs::remove_file(checkpoint).expect("removed");
    }
}

#[test]
fn a_checkpoint_that_does_not_belong_to_the_run_is_refused_in_words() {
    let folder = tempfile::tempdir().expect("a folder");
    let [path, _] = inputs(folder.path());
    let (loading, checkpoint) = (loading(&[path], 0), folder.path().join("run.checkpoint"));
    let how = Clustering { checkpoint: Some(checkpoint.clone()), resume: true, ..clustering(5, 1) };
    let refusal = |how: &Clustering| rank(&Peers::alone(), &loading, how).err().expect("refused").to_string();
    whole(1, &loading, &how);
    let said = refusal(&Clustering { seed: 6, ..how.clone() });
    assert!(
        said.contains("seed: 5") && said.contains("seed: 6") && said.contains("remove the file"),
        "{said}"
    );
    let whole = std::fs::read(&checkpoint).expect("read");
    std::fs::write(&checkpoint, &whole[..whole.len() - 1]).expect("written");
    assert!(refusal(&how).contains("it is damaged"), "{}", refusal(&how));
    for garbage in [&b""[..], b"{}", b"{}\n", b"\xff\n\n", &whole[..40]] {
        std::fs::write(&checkpoint, garbage).expect("written");
        assert!(refusal(&how).contains("no \"cool-map checkpoint 1\""));
    }
}
