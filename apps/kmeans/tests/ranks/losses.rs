//! Results must be the same if ranks are lost, and if all are lost and a later run resumes.

use crate::runs::{Outcome, PARTS, Whole, clustering, join, loading, noise, rank, whole, write_bytes};
use cool::embedded::Embedded;
use cool_kmeans::options::ClusteringOptions;
use cool_kmeans::peer_ranks::{PeerRanks, surviving};
use cool_kmeans::point_share::{LoadOptions, PointShare};
use cool_kmeans::progress::{ClusteringProgress, Iteration, ProgressObserver};
use cool_kmeans::{npy, visual_words};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;

const LAYOUT: Embedded = Embedded { ranks: 6, ranks_per_node: 2, racks: 2 };

/// Points as bytes and as real numbers, because the two are loaded differently.
fn inputs(directory: &std::path::Path) -> [PathBuf; 2] {
    let (n, dims) = (300, 9);
    let values = noise(n * dims, 256);
    let [bytes, reals] = ["bytes.npy", "reals.npy"].map(|name| directory.join(name));
    write_bytes(&bytes, &values.iter().map(|v| *v as u8).collect::<Vec<_>>(), dims);
    npy::write(&reals, &values.iter().map(|v| *v as f64 / 7.0).collect::<Vec<_>>(), dims).expect("written");
    [bytes, reals]
}

/// Returns the results of the survivors when some ranks leave before loading or after some
/// iterations.
pub(crate) fn with_losses(
    layout: &Embedded,
    loading: &LoadOptions,
    how: &ClusteringOptions,
    losses: &[(usize, Option<usize>)],
) -> Whole {
    let rank = |comm: cool::Comm| -> Option<Outcome> {
        let watch = match losses.iter().find(|(lost, _)| *lost == comm.rank()) {
            Some((_, last)) => Lost { after: Some((*last)?) },
            None => Lost { after: None },
        };
        // A lost rank does the same as the others until it leaves; others may leave earlier.
        catch_unwind(AssertUnwindSafe(|| survivor(comm, loading, how, &watch))).ok()
    };
    join(cool::embedded::run(layout.clone(), rank).expect("agents start").into_iter().flatten().collect())
}

fn survivor(
    comm: cool::Comm,
    loading: &LoadOptions,
    how: &ClusteringOptions,
    watch: &dyn ProgressObserver,
) -> Outcome {
    let (mut share, mut progress) = (None, ClusteringProgress::new());
    let (clustered, found) = surviving(comm, PARTS, |peers| {
        let share = PointShare::reload(&mut share, peers, loading, watch)?;
        let clustered = share.cluster(peers, how, watch, &mut progress)?;
        visual_words::find(peers, share, &clustered, 3, 4).map(|found| (clustered, found))
    })?;
    let share = share.take().ok_or_else(|| cool_kmeans::Error::Option("no share".into()))?;
    Ok((share, clustered, found))
}

/// Ends its rank after the given iteration, by a panic without a message.
struct Lost {
    after: Option<usize>,
}

impl ProgressObserver for Lost {
    fn loading(&self, _: u64) {}

    fn loaded(&self, _: u64) {}

    fn iteration(&self, iteration: &Iteration) {
        if self.after == Some(iteration.number) {
            resume_unwind(Box::new("lost"));
        }
    }
}

/// Returns the whole result except the numbers of moved points, which a survivor cannot know for
/// points that it has just read.
pub(crate) fn essence(run: &Whole) -> impl PartialEq + std::fmt::Debug + '_ {
    let moved: Vec<usize> = run.moved.iter().map(|(_, centroids)| *centroids).collect();
    (&run.centroids, &run.real, &run.labels, &run.sizes, &run.inertia, moved, run.converged)
}

#[test]
fn survivors_of_any_loss_reach_the_undisturbed_result() {
    let directory = tempfile::tempdir().expect("a directory");
    for path in inputs(directory.path()) {
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
fn a_later_run_resumes_the_checkpoint_on_any_number_of_ranks() {
    let directory = tempfile::tempdir().expect("a directory");
    for path in inputs(directory.path()) {
        let (loading, how) = (loading(&[path], 0), clustering(5, 1));
        let undisturbed = whole(2, &loading, &how);
        let checkpoint = directory.path().join("run.checkpoint");
        let how = ClusteringOptions { checkpoint: Some(checkpoint.clone()), resume: true, ..how };
        // Without a checkpoint, the run starts from the beginning.
        let first = whole(3, &loading, &ClusteringOptions { iterations: 3, ..how.clone() });
        assert_eq!(first.inertia[..], undisturbed.inertia[..4]);
        assert_eq!(essence(&whole(4, &loading, &how)), essence(&undisturbed));
        // Resumes once more from the final checkpoint.
        assert_eq!(essence(&whole(1, &loading, &how)), essence(&undisturbed));
        assert!(!directory.path().join("run.checkpoint.new").exists());
        std::fs::remove_file(checkpoint).expect("removed");
    }
}

#[test]
fn a_checkpoint_of_another_run_is_refused_with_the_reason() {
    let directory = tempfile::tempdir().expect("a directory");
    let [path, _] = inputs(directory.path());
    let (loading, checkpoint) = (loading(&[path], 0), directory.path().join("run.checkpoint"));
    let how = ClusteringOptions { checkpoint: Some(checkpoint.clone()), resume: true, ..clustering(5, 1) };
    let refusal = |how: &ClusteringOptions| {
        rank(&PeerRanks::alone(), &loading, how).err().expect("refused").to_string()
    };
    whole(1, &loading, &how);
    let message = refusal(&ClusteringOptions { seed: 6, ..how.clone() });
    assert!(
        message.contains("seed: 5") && message.contains("seed: 6") && message.contains("remove the file"),
        "{message}"
    );
    let whole = std::fs::read(&checkpoint).expect("read");
    std::fs::write(&checkpoint, &whole[..whole.len() - 1]).expect("written");
    assert!(refusal(&how).contains("it is damaged"), "{}", refusal(&how));
    for garbage in [&b""[..], b"{}", b"{}\n", b"\xff\n\n", &whole[..40]] {
        std::fs::write(&checkpoint, garbage).expect("written");
        assert!(refusal(&how).contains("not a \"cool-map checkpoint 1\""));
    }
}
