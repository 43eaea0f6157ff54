//! Pictures as points: patches on a regular grid or at random positions, described by
//! [`super::hog`].
//!
//! The number of patches follows from the pictures' headers. Each rank reads some of the headers
//! and sends their contents to the other ranks, so every rank knows the positions of all points and
//! decodes only its own pictures. Colors are converted to gray by the weights of ITU-R BT.709.

use super::entry::{EntryReader, InputEntry};
use super::formats::PointOrigin;
use super::hog::{self, CELLS, GradientBand, GrayPixels};
use crate::data::partition::draw;
use crate::error::Error;
use crate::peer_ranks::PeerRanks;
use cool_map::threads;
use image::{DynamicImage, ImageReader, RgbImage};
use serde::{Deserialize, Serialize};
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// How patches are cut out and described.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PatchLayout {
    /// Side of a patch in pixels, a multiple of its cells.
    pub patch: u32,
    /// Distance between neighboring patches in pixels, in both directions.
    pub stride: u32,
    /// Cells along a patch's side: 5 for 512 numbers, 9 for 2048.
    pub cells: u32,
}

/// Random patches of each picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PatchSampling {
    /// Patches per picture. A patch may be drawn more than once.
    pub each: u32,
    /// Seed of the draw.
    pub seed: u64,
}

impl PatchLayout {
    /// Checks the numbers, and creates the layout.
    ///
    /// # Errors
    /// If a patch does not consist of whole cells, or the distance between patches is 0.
    pub fn new(cells: u32, patch: u32, stride: u32) -> Result<Self, Error> {
        if !CELLS.contains(&(cells as usize)) {
            return Err(Error::Option(format!(
                "a patch of {cells} x {cells} cells; it must have 5 x 5 or 9 x 9"
            )));
        }
        if patch == 0 || !patch.is_multiple_of(cells) {
            return Err(Error::Option(format!(
                "--patch {patch}: a patch is {cells} x {cells} cells, so its side must be a multiple of {cells}"
            )));
        }
        if stride == 0 {
            return Err(Error::Option("--stride 0: patches must be at least one pixel apart".into()));
        }
        Ok(Self { patch, stride, cells })
    }

    /// Returns the length of a patch's vector.
    pub fn dims(self) -> usize {
        hog::dims(self.cells as usize)
    }

    /// Returns the number of patches along a side of `pixels` pixels.
    fn along(self, pixels: u32) -> u64 {
        pixels.checked_sub(self.patch).map_or(0, |room| u64::from(room / self.stride) + 1)
    }
}

/// Pictures and their patches.
#[derive(Debug)]
pub struct Pictures {
    cut: PatchLayout,
    sampling: Option<PatchSampling>,
    list: Vec<PictureFile>,
    skipped: Vec<PathBuf>,
}

#[derive(Debug)]
struct PictureFile {
    entry: InputEntry,
    /// Width in pixels.
    width: u32,
    /// Height in pixels.
    height: u32,
    /// Number of patches in this picture and all previous ones.
    end: u64,
}

/// The position of a patch: the picture's number, and the upper left corner in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PatchPosition {
    picture: usize,
    x: u32,
    y: u32,
}

/// The points of a picture that must be computed: the positions of its patches, and the memory for
/// their vectors.
struct PictureJob<'a> {
    picture: usize,
    spots: Vec<PatchPosition>,
    vectors: &'a mut [u8],
}

impl Pictures {
    /// Reads the headers of pictures, some at each rank. With `skip_bad`, pictures are decoded
    /// completely, and those that fail are skipped.
    ///
    /// # Errors
    /// If a picture cannot be read. Without `skip_bad`, also if it has no valid header.
    pub fn open(
        peers: &PeerRanks<'_>,
        entries: Vec<InputEntry>,
        cut: PatchLayout,
        skip_bad: bool,
        on: usize,
    ) -> Result<Self, Error> {
        let size = |entry: &InputEntry| match size(entry, skip_bad) {
            Err(Error::Picture { .. }) if skip_bad => Ok(None),
            size => size.map(Some),
        };
        let sizes = peers.deal(entries.len(), |mine| {
            threads::map(on, mine.len(), |i| size(&entries[mine[i]])).into_iter().collect()
        })?;
        let mut pictures = Self { cut, sampling: None, list: Vec::new(), skipped: Vec::new() };
        for (entry, size) in entries.into_iter().zip(sizes) {
            match size {
                Some((width, height)) => pictures.list.push(PictureFile { entry, width, height, end: 0 }),
                None => pictures.skipped.push(entry.name),
            }
        }
        if pictures.list.is_empty() {
            return Err(Error::Input("no picture can be decoded; nothing is left to cluster".into()));
        }
        pictures.number();
        Ok(pictures)
    }

    /// Opens one picture with patches on the regular grid.
    ///
    /// # Errors
    /// If the picture cannot be read.
    pub fn one(entry: &InputEntry, cut: PatchLayout) -> Result<Self, Error> {
        let (width, height) = size(entry, false)?;
        let list = vec![PictureFile { entry: entry.clone(), width, height, end: 0 }];
        let mut picture = Self { cut, sampling: None, list, skipped: Vec::new() };
        picture.number();
        Ok(picture)
    }

    /// Returns the same pictures, with random patches if `sampling` is given.
    #[must_use]
    pub fn sampled(mut self, sampling: Option<PatchSampling>) -> Self {
        self.sampling = sampling;
        self.number();
        self
    }

    /// Counts the patches, and sets the `end` of each picture.
    fn number(&mut self) {
        let mut end = 0;
        for picture in &mut self.list {
            let on_grid = self.cut.along(picture.width) * self.cut.along(picture.height);
            end += self.sampling.map_or(on_grid, |sampling| u64::from(sampling.each) * on_grid.min(1));
            picture.end = end;
        }
    }

    /// Returns the total number of patches.
    pub fn rows(&self) -> u64 {
        self.list.last().map_or(0, |p| p.end)
    }

    /// Returns how patches are cut out.
    pub fn cut(&self) -> PatchLayout {
        self.cut
    }

    /// Returns the pictures that were skipped.
    pub fn skipped(&self) -> &[PathBuf] {
        &self.skipped
    }

    /// Returns the files of the pictures.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = &InputEntry> {
        self.list.iter().map(|p| &p.entry)
    }

    /// Returns the vectors of the given patches, which must ascend. `done` is called after each
    /// picture with the number of its vectors.
    ///
    /// # Errors
    /// If a picture cannot be decoded.
    pub fn load(&self, rows: &[u64], threads: usize, done: &(dyn Fn(u64) + Sync)) -> Result<Vec<u8>, Error> {
        let mut vectors = vec![0; rows.len() * self.cut.dims()];
        let jobs = self.jobs(rows, &mut vectors);
        // After the first failure, the other threads skip the remaining pictures.
        let failed = Mutex::new(None);
        let failure = || failed.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        threads::map_mut(threads, jobs, |_, job| {
            if failure().is_none() {
                let count = job.spots.len() as u64;
                match self.describe(job) {
                    Ok(()) => done(count),
                    Err(error) => *failure() = Some(error),
                }
            }
        });
        let failure = failure().take();
        failure.map_or(Ok(vectors), Err)
    }

    /// Returns the origins of the given patches.
    pub fn origins(&self, rows: &[u64]) -> Vec<PointOrigin> {
        let place = |&row: &u64| {
            let spot = self.spot(row);
            let file = self.list[spot.picture].entry.name.display().to_string();
            PointOrigin { file, row: u64::from(spot.y), column: u64::from(spot.x) }
        };
        rows.iter().map(place).collect()
    }

    /// Returns the center of a patch, as shares of its picture's width and height.
    pub fn middle(&self, row: u64) -> (f32, f32) {
        let PatchPosition { picture, x, y } = self.spot(row);
        let share = |edge: u32, side: u32| (edge as f32 + self.cut.patch as f32 / 2.0) / side as f32;
        (share(x, self.list[picture].width), share(y, self.list[picture].height))
    }

    /// Returns the given patches in color, in the given order.
    pub fn patches(&self, rows: &[u64]) -> Result<Vec<RgbImage>, Error> {
        let mut wanted: Vec<(PatchPosition, usize)> = rows.iter().map(|&r| self.spot(r)).zip(0..).collect();
        wanted.sort_by_key(|(spot, _)| spot.picture);
        let mut patches = vec![RgbImage::default(); rows.len()];
        for same in wanted.chunk_by(|a, b| a.0.picture == b.0.picture) {
            let picture = decode(&self.list[same[0].0.picture].entry)?.into_rgb8();
            for &(PatchPosition { x, y, .. }, i) in same {
                let view = image::imageops::crop_imm(&picture, x, y, self.cut.patch, self.cut.patch);
                patches[i] = view.to_image();
            }
        }
        Ok(patches)
    }

    fn spot(&self, row: u64) -> PatchPosition {
        let number = self.list.partition_point(|p| p.end <= row);
        let picture = &self.list[number];
        // A patch lies inside its picture, so its position fits u32.
        let (x, y) = if let Some(PatchSampling { each, seed }) = self.sampling {
            let drawn = number as u64 * u64::from(each) + (row + u64::from(each) - picture.end);
            let place = |i: u64, pixels: u32| draw(seed, i) % u64::from(pixels - self.cut.patch + 1);
            (place(2 * drawn, picture.width), place(2 * drawn + 1, picture.height))
        } else {
            let columns = self.cut.along(picture.width);
            let within = row - number.checked_sub(1).map_or(0, |before| self.list[before].end);
            let stride = u64::from(self.cut.stride);
            (within % columns * stride, within / columns * stride)
        };
        PatchPosition { picture: number, x: x as u32, y: y as u32 }
    }

    fn jobs<'a>(&self, rows: &[u64], mut vectors: &'a mut [u8]) -> Vec<PictureJob<'a>> {
        let spots: Vec<PatchPosition> = rows.iter().map(|&row| self.spot(row)).collect();
        let same = spots.chunk_by(|a, b| a.picture == b.picture);
        let job = |spots: &[PatchPosition]| {
            let (mine, rest) = std::mem::take(&mut vectors).split_at_mut(spots.len() * self.cut.dims());
            vectors = rest;
            PictureJob { picture: spots[0].picture, spots: spots.to_vec(), vectors: mine }
        };
        same.map(job).collect()
    }

    fn describe(&self, job: PictureJob<'_>) -> Result<(), Error> {
        let entry = &self.list[job.picture].entry;
        let picture = decode(entry)?.into_luma8();
        let (size, cells) = (self.cut.patch as usize, self.cut.cells as usize);
        let (width, height) = (picture.width() as usize, picture.height() as usize);
        // The header was read earlier. A file that has shrunk since must cause an error, not a
        // panic.
        if job.spots.iter().any(|s| s.x as usize + size > width || s.y as usize + size > height) {
            return Err(Error::Input(format!("{}: changed while it was being read", entry.name.display())));
        }
        let gray = GrayPixels { width, height, pixels: picture.as_raw() };
        let mut vectors = job.vectors.chunks_exact_mut(self.cut.dims());
        for level in job.spots.chunk_by(|a, b| a.y == b.y) {
            let edges = || level.iter().map(|spot| spot.x as usize);
            let columns = edges().min().unwrap_or(0)..edges().max().unwrap_or(0) + size;
            let top = level[0].y as usize;
            let band = GradientBand::new(gray, columns, top..top + size);
            for (spot, vector) in level.iter().zip(&mut vectors) {
                band.describe(spot.x as usize, size, cells, vector);
            }
        }
        Ok(())
    }
}

/// Returns width and height in pixels. With `all`, the picture must also be decodable.
fn size(entry: &InputEntry, all: bool) -> Result<(u32, u32), Error> {
    if all {
        return decode(entry).map(|picture| (picture.width(), picture.height()));
    }
    reader(entry)?.into_dimensions().map_err(bad(&entry.name))
}

/// Returns the decoded picture.
pub(crate) fn decode(entry: &InputEntry) -> Result<DynamicImage, Error> {
    // The decoder's own limit of 512 MiB prevents a hostile header from exhausting the memory.
    reader(entry)?.decode().map_err(bad(&entry.name))
}

fn reader(entry: &InputEntry) -> Result<ImageReader<BufReader<EntryReader>>, Error> {
    let section = entry.open().map_err(Error::file(&entry.name))?;
    ImageReader::new(BufReader::new(section)).with_guessed_format().map_err(Error::file(&entry.name))
}

fn bad(path: &Path) -> impl FnOnce(image::ImageError) -> Error {
    move |source| Error::Picture { path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn save(directory: &Path, name: &str, width: u32, height: u32) -> PathBuf {
        let path = directory.join(name);
        let pixel = |x: u32, y: u32| image::Rgb([(x * 3) as u8, (y * 5) as u8, (x * y) as u8]);
        RgbImage::from_fn(width, height, pixel).save(&path).expect("saved");
        path
    }

    fn open(paths: &[PathBuf], cut: PatchLayout, skip_bad: bool) -> Result<Pictures, Error> {
        let entries = paths.iter().cloned().map(InputEntry::file).collect();
        Pictures::open(&PeerRanks::alone(), entries, cut, skip_bad, 2)
    }

    #[test]
    fn any_part_of_the_patches_loads_alike() {
        let directory = tempfile::tempdir().expect("a directory");
        let paths = [("a.png", 60, 45), ("small.png", 39, 100), ("b.jpg", 47, 90)]
            .map(|(name, width, height)| save(directory.path(), name, width, height));
        let cut = PatchLayout::new(5, 40, 5).expect("a cut");
        let pictures = open(&paths, cut, false).expect("opened");
        assert_eq!(pictures.rows(), 5 * 2 + 2 * 11, "the small one has no patch");
        let rows: Vec<u64> = (0..pictures.rows()).collect();
        let all = pictures.load(&rows, 3, &|_| ()).expect("loaded");
        for part in [0..7usize, 7..23, 23..32] {
            let some = pictures.load(&rows[part.clone()], 1, &|_| ()).expect("loaded");
            assert_eq!(some, all[part.start * 512..part.end * 512]);
        }
        let origins = pictures.origins(&[6, 13]);
        assert_eq!((origins[0].row, origins[0].column), (5, 5));
        assert_eq!((origins[1].row, origins[1].column), (5, 5));
        assert!(origins[1].file.ends_with("b.jpg"));
        assert_eq!(pictures.middle(13), (25.0 / 47.0, 25.0 / 90.0));
        assert_eq!(pictures.patches(&[13, 0]).expect("patches")[1].get_pixel(3, 2).0, [9, 10, 6]);
    }

    #[test]
    fn a_picture_that_does_not_decode_is_named_or_left_out() {
        let directory = tempfile::tempdir().expect("a directory");
        let good = save(directory.path(), "good.png", 50, 50);
        let junk = directory.path().join("junk.jpg");
        std::fs::write(&junk, b"no picture").expect("written");
        let cut_short = directory.path().join("short.png");
        let bytes = std::fs::read(&good).expect("read");
        std::fs::write(&cut_short, &bytes[..bytes.len() / 2]).expect("written");
        let cut = PatchLayout::new(5, 40, 40).expect("a cut");

        let message = open(&[good.clone(), junk.clone()], cut, false).expect_err("refused").to_string();
        assert!(message.contains("junk.jpg") && message.contains("--skip-bad-images"), "{message}");
        let short = open(std::slice::from_ref(&cut_short), cut, false).expect("has a header");
        let message = short.load(&[0], 1, &|_| ()).expect_err("refused").to_string();
        assert!(message.contains("short.png"), "{message}");

        let rest = open(&[junk.clone(), good.clone(), cut_short.clone()], cut, true).expect("skipped");
        assert_eq!(rest.entries().map(|e| &e.name).collect::<Vec<_>>(), [&good]);
        assert_eq!(rest.skipped(), [junk.clone(), cut_short]);
        let message = open(&[junk], cut, true).expect_err("nothing left").to_string();
        assert!(message.contains("no picture can be decoded"), "{message}");
        let missing = open(&[directory.path().join("none.png")], cut, true).expect_err("refused");
        assert!(matches!(missing, Error::File { .. }), "a missing file is not a bad picture");
    }

    #[test]
    fn impossible_patch_layouts_are_refused() {
        assert!(
            PatchLayout::new(5, 0, 1).is_err()
                && PatchLayout::new(5, 42, 1).is_err()
                && PatchLayout::new(5, 40, 0).is_err()
        );
        assert!(PatchLayout::new(9, 40, 1).is_err() && PatchLayout::new(6, 36, 1).is_err());
        assert_eq!(PatchLayout::new(9, 36, 1).expect("a cut").dims(), 2048);
    }

    #[test]
    fn random_patches_lie_in_their_pictures_and_depend_on_the_seed() {
        let directory = tempfile::tempdir().expect("a directory");
        let paths = [("a.png", 60, 45), ("small.png", 39, 100), ("b.png", 40, 90)]
            .map(|(name, width, height)| save(directory.path(), name, width, height));
        let cut = PatchLayout::new(5, 40, 7).expect("a cut");
        let draw = |seed| {
            let pictures =
                open(&paths, cut, false).expect("opened").sampled(Some(PatchSampling { each: 6, seed }));
            let rows: Vec<u64> = (0..pictures.rows()).collect();
            let all = pictures.load(&rows, 2, &|_| ()).expect("all patches lie inside");
            assert_eq!(pictures.load(&rows[4..9], 1, &|_| ()).expect("loaded"), all[4 * 512..9 * 512]);
            (pictures.origins(&rows), all)
        };
        let (origins, vectors) = draw(1);
        assert_eq!(origins.len(), 12, "none of the small one");
        assert!(origins[..6].iter().all(|p| p.file.ends_with("a.png") && p.row <= 5 && p.column <= 20));
        assert!(origins[6..].iter().all(|p| p.file.ends_with("b.png") && p.row <= 50 && p.column == 0));
        assert!(draw(1) == (origins.clone(), vectors) && draw(2).0 != origins);
    }
}
