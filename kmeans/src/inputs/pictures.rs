//! Pictures as points: patches on a regular grid of each, described by [`crate::hog`].
//!
//! How many patches there are follows from the pictures' headers, so that every rank knows all points' places and
//! decodes only the pictures of its own. Colours are made grey by the weights of ITU-R BT.709.

use crate::error::Error;
use crate::inputs::Place;
use crate::inputs::hog::{Band, CELLS, DIMS, Grey};
use crate::threads::joined;
use image::{DynamicImage, ImageReader, RgbImage};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Endings of files that are taken for pictures.
pub(crate) const ENDINGS: [&str; 3] = ["jpg", "jpeg", "png"];

/// How patches are cut out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Cut {
    /// Side of a patch in pixels, a multiple of 5.
    pub patch: u32,
    /// Pixels from one patch to the next, both ways.
    pub stride: u32,
}

impl Cut {
    /// Checks the two numbers.
    pub fn new(patch: u32, stride: u32) -> Result<Self, Error> {
        if patch == 0 || !patch.is_multiple_of(CELLS as u32) {
            return Err(Error::Option(format!(
                "--patch {patch}: a patch is {CELLS} x {CELLS} cells, so its side must be a multiple of {CELLS}"
            )));
        }
        if stride == 0 {
            return Err(Error::Option("--stride 0: patches must be at least one pixel apart".into()));
        }
        Ok(Self { patch, stride })
    }

    /// Patches along a side.
    fn along(self, pixels: u32) -> u64 {
        pixels.checked_sub(self.patch).map_or(0, |room| u64::from(room / self.stride) + 1)
    }
}

/// Pictures and the patches in them.
#[derive(Debug)]
pub struct Pictures {
    cut: Cut,
    list: Vec<Picture>,
}

#[derive(Debug)]
struct Picture {
    path: PathBuf,
    /// In pixels.
    width: u32,
    /// In pixels.
    height: u32,
    columns: u64,
    /// Patches in this and all pictures before it.
    end: u64,
}

/// One patch: a picture's number and the patch's upper left corner in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Spot {
    picture: usize,
    x: u32,
    y: u32,
}

/// A picture's points to be made: where its patches are, and the room for their vectors.
struct Job<'a> {
    picture: usize,
    spots: Vec<Spot>,
    vectors: &'a mut [u8],
}

impl Pictures {
    /// Reads the headers of pictures. One that has none is an error, or with `skip_bad` left out.
    pub fn open(paths: &[PathBuf], cut: Cut, skip_bad: bool) -> Result<Self, Error> {
        let mut list = Vec::new();
        let mut end = 0;
        for path in paths {
            let (width, height) = match reader(path).and_then(|r| r.into_dimensions().map_err(bad(path))) {
                Err(Error::Picture { .. }) if skip_bad => continue,
                size => size?,
            };
            let columns = cut.along(width);
            end += columns * cut.along(height);
            list.push(Picture { path: path.clone(), width, height, columns, end });
        }
        Ok(Self { cut, list })
    }

    /// Patches in all.
    pub fn rows(&self) -> u64 {
        self.list.last().map_or(0, |p| p.end)
    }

    /// Side of a patch in pixels.
    pub fn patch(&self) -> u32 {
        self.cut.patch
    }

    /// The pictures' files.
    pub fn files(&self) -> Vec<PathBuf> {
        self.list.iter().map(|p| p.path.clone()).collect()
    }

    /// The vectors of the given patches, which rise; `done` hears of every picture's when they are made.
    pub fn load(&self, rows: &[u64], threads: usize, done: &(dyn Fn(u64) + Sync)) -> Result<Vec<u8>, Error> {
        let mut vectors = vec![0; rows.len() * DIMS];
        let queue = Mutex::new(self.jobs(rows, &mut vectors).into_iter());
        let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
        let work = || -> Result<(), Error> {
            while let Some(job) = next() {
                let count = job.spots.len() as u64;
                self.describe(job)?;
                done(count);
            }
            Ok(())
        };
        let results: Vec<_> = std::thread::scope(|scope| {
            let running: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            running.into_iter().map(joined).collect()
        });
        results.into_iter().collect::<Result<Vec<()>, Error>>()?;
        Ok(vectors)
    }

    /// Where the given patches are.
    pub fn places(&self, rows: &[u64]) -> Vec<Place> {
        let place = |&row: &u64| {
            let spot = self.spot(row);
            let file = self.list[spot.picture].path.display().to_string();
            Place { file, row: u64::from(spot.y), column: u64::from(spot.x) }
        };
        rows.iter().map(place).collect()
    }

    /// The middle of a patch, as shares of its picture's width and height.
    pub fn middle(&self, row: u64) -> (f32, f32) {
        let Spot { picture, x, y } = self.spot(row);
        let share = |edge: u32, side: u32| (edge as f32 + self.cut.patch as f32 / 2.0) / side as f32;
        (share(x, self.list[picture].width), share(y, self.list[picture].height))
    }

    /// The given patches in colour, in the order given.
    pub fn patches(&self, rows: &[u64]) -> Result<Vec<RgbImage>, Error> {
        let mut wanted: Vec<(Spot, usize)> = rows.iter().map(|&r| self.spot(r)).zip(0..).collect();
        wanted.sort_by_key(|(spot, _)| spot.picture);
        let mut patches = vec![RgbImage::default(); rows.len()];
        for same in wanted.chunk_by(|a, b| a.0.picture == b.0.picture) {
            let picture = decode(&self.list[same[0].0.picture].path)?.into_rgb8();
            for &(Spot { x, y, .. }, i) in same {
                let view = image::imageops::crop_imm(&picture, x, y, self.cut.patch, self.cut.patch);
                patches[i] = view.to_image();
            }
        }
        Ok(patches)
    }

    fn spot(&self, row: u64) -> Spot {
        let picture = self.list.partition_point(|p| p.end <= row);
        let first = picture.checked_sub(1).map_or(0, |before| self.list[before].end);
        let (within, columns) = (row - first, self.list[picture].columns);
        // A patch lies inside its picture, whose sides are u32.
        let pixels = |i: u64| (i * u64::from(self.cut.stride)) as u32;
        Spot { picture, x: pixels(within % columns), y: pixels(within / columns) }
    }

    fn jobs<'a>(&self, rows: &[u64], mut vectors: &'a mut [u8]) -> Vec<Job<'a>> {
        let spots: Vec<Spot> = rows.iter().map(|&row| self.spot(row)).collect();
        let same = spots.chunk_by(|a, b| a.picture == b.picture);
        let job = |spots: &[Spot]| {
            let (mine, rest) = std::mem::take(&mut vectors).split_at_mut(spots.len() * DIMS);
            vectors = rest;
            Job { picture: spots[0].picture, spots: spots.to_vec(), vectors: mine }
        };
        same.map(job).collect()
    }

    fn describe(&self, job: Job<'_>) -> Result<(), Error> {
        let path = &self.list[job.picture].path;
        let picture = decode(path)?.into_luma8();
        let size = self.cut.patch as usize;
        let (width, height) = (picture.width() as usize, picture.height() as usize);
        // The header was read before; a file that has shrunk since is an error and no panic.
        if job.spots.iter().any(|s| s.x as usize + size > width || s.y as usize + size > height) {
            return Err(Error::Input(format!("{}: changed while it was being read", path.display())));
        }
        let grey = Grey { width, height, pixels: picture.as_raw() };
        let mut vectors = job.vectors.chunks_exact_mut(DIMS);
        for level in job.spots.chunk_by(|a, b| a.y == b.y) {
            let band = Band::new(grey, level[0].y as usize, size);
            for (spot, vector) in level.iter().zip(&mut vectors) {
                band.describe(spot.x as usize, size, vector);
            }
        }
        Ok(())
    }
}

/// Whether a picture decodes.
pub fn decodes(path: &Path) -> Result<bool, Error> {
    match decode(path) {
        Ok(_) => Ok(true),
        Err(Error::Picture { .. }) => Ok(false),
        Err(other) => Err(other),
    }
}

fn decode(path: &Path) -> Result<DynamicImage, Error> {
    // The reader's own limit of 512 MiB keeps a hostile header from taking all memory.
    reader(path)?.decode().map_err(bad(path))
}

fn reader(path: &Path) -> Result<ImageReader<std::io::BufReader<std::fs::File>>, Error> {
    ImageReader::open(path).and_then(|r| r.with_guessed_format()).map_err(Error::file(path))
}

fn bad(path: &Path) -> impl FnOnce(image::ImageError) -> Error {
    move |source| Error::Picture { path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn save(folder: &Path, name: &str, width: u32, height: u32) -> PathBuf {
        let path = folder.join(name);
        let pixel = |x: u32, y: u32| image::Rgb([(x * 3) as u8, (y * 5) as u8, (x * y) as u8]);
        RgbImage::from_fn(width, height, pixel).save(&path).expect("saved");
        path
    }

    #[test]
    fn any_part_of_the_patches_loads_alike() {
        let folder = tempfile::tempdir().expect("a folder");
        let paths = [("a.png", 60, 45), ("small.png", 39, 100), ("b.jpg", 47, 90)]
            .map(|(name, width, height)| save(folder.path(), name, width, height));
        let cut = Cut::new(40, 5).expect("a cut");
        let pictures = Pictures::open(&paths, cut, false).expect("opened");
        assert_eq!(pictures.rows(), 5 * 2 + 2 * 11, "the small one has no patch");
        let rows: Vec<u64> = (0..pictures.rows()).collect();
        let all = pictures.load(&rows, 3, &|_| ()).expect("loaded");
        for part in [0..7usize, 7..23, 23..32] {
            let some = pictures.load(&rows[part.clone()], 1, &|_| ()).expect("loaded");
            assert_eq!(some, all[part.start * DIMS..part.end * DIMS]);
        }
        let places = pictures.places(&[6, 13]);
        assert_eq!((places[0].row, places[0].column), (5, 5));
        assert_eq!((places[1].row, places[1].column), (5, 5));
        assert!(places[1].file.ends_with("b.jpg"));
        assert_eq!(pictures.middle(13), (25.0 / 47.0, 25.0 / 90.0));
        assert_eq!(pictures.patches(&[13, 0]).expect("patches")[1].get_pixel(3, 2).0, [9, 10, 6]);
    }

    #[test]
    fn a_picture_that_does_not_decode_is_named_or_left_out() {
        let folder = tempfile::tempdir().expect("a folder");
        let good = save(folder.path(), "good.png", 50, 50);
        let junk = folder.path().join("junk.jpg");
        std::fs::write(&junk, b"no picture").expect("written");
        let cut_short = folder.path().join("short.png");
        let bytes = std::fs::read(&good).expect("read");
        std::fs::write(&cut_short, &bytes[..bytes.len() / 2]).expect("written");
        let cut = Cut::new(40, 40).expect("a cut");

        let said =
            Pictures::open(&[good.clone(), junk.clone()], cut, false).expect_err("refused").to_string();
        assert!(said.contains("junk.jpg") && said.contains("--skip-bad-images"), "{said}");
        let rest = Pictures::open(&[junk.clone(), good.clone()], cut, true).expect("skipped");
        assert_eq!(rest.files(), std::slice::from_ref(&good));

        let short = Pictures::open(std::slice::from_ref(&cut_short), cut, false).expect("has a header");
        let said = short.load(&[0], 1, &|_| ()).expect_err("refused").to_string();
        assert!(said.contains("short.png"), "{said}");
        assert!(!decodes(&cut_short).expect("readable") && decodes(&good).expect("readable"));
        let missing = Pictures::open(&[folder.path().join("none.png")], cut, true).expect_err("refused");
        assert!(matches!(missing, Error::File { .. }), "a missing file is not a bad picture");
    }

    #[test]
    fn cuts_that_make_no_sense_are_refused() {
        assert!(Cut::new(0, 1).is_err() && Cut::new(42, 1).is_err() && Cut::new(40, 0).is_err());
    }
}
