//! Model files from any source: an accepted model must be written with the same bytes again, and
//! its parts must fit together.

use cool_kmeans::model::Model;

pub(crate) fn check(bytes: &[u8]) {
    match Model::decode(bytes) {
        Ok(model) => {
            assert_eq!(Model::decode(&model.encode()).expect("it was taken before").encode(), model.encode());
            let centroids = &model.clusters.centroids;
            assert_eq!(centroids.len() * centroids.width(), centroids.values.len());
        }
        Err(refused) => assert!(!refused.is_empty()),
    }
}

#[cfg(test)]
fn seeds() -> Vec<Vec<u8>> {
    use cool_kmeans::grid::{Centroids, Grid, Precision, Reals};
    use cool_kmeans::model::{Clusters, Provenance};
    let model = |precision, grid: Grid, values: Vec<i16>| {
        let centroids = Centroids { precision, dims: grid.origin.len(), values };
        let clusters = Clusters { centroids, grid, cut: None };
        Model { clusters, classifier: None, provenance: Provenance::default() }.encode()
    };
    vec![
        model(Precision::Byte, Grid::bytes(2, 1.0), vec![0, 32_640, 7, 128]),
        model(Precision::Wide, Grid::spanning(Reals::Short, &[-1.0], &[2.5]), vec![-32_767, 3, 32_767]),
        model(Precision::Fine, Grid::spanning(Reals::Float, &[-1.0], &[2.5]), vec![-32_767, 0, 32_766, 127]),
    ]
}

target!();
