//! What each family makes of a picture before its encoder.

use crate::{Error, Filter, Marks, Pixels, resize};

/// How a picture is resized and cut.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Method {
    /// Squares of `tile`, and the whole picture in one more. The longer side becomes `longest` first, then both sides whole tiles.
    Tiles {
        /// The longer side.
        longest: u32,
        /// The side of a tile.
        tile: u32,
        /// Without it the whole picture in one tile is all there is.
        split: bool,
    },
    /// As many squares of `tile` as fit the proportion of the sides best, and the whole picture in one more if there are several.
    Canvas {
        /// The side of a tile.
        tile: u32,
        /// The fewest and the most tiles.
        count: [u32; 2],
    },
    /// Pictures with more than twice the most features become tiles as in `Canvas`, and the whole picture in its proportion after
    /// them. Others keep their proportion.
    Grid {
        /// The side of a tile.
        tile: u32,
        /// The fewest and the most tiles; `[1, 1]`: no picture is cut.
        count: [u32; 2],
        /// The fewest and the most features of the whole picture.
        features: [u32; 2],
        /// The whole picture follows its tiles.
        whole: bool,
    },
    /// The whole picture in a square of `tile`, then squares of the picture in the best of some sizes, in its proportion with black
    /// borders. Features of borders are left out.
    Padded {
        /// The side of a tile.
        tile: u32,
    },
    /// The whole picture in about as many pixels as a square of `side` has. Larger pictures are followed by as many slices of their own
    /// proportion as they have times these pixels, each of about as many.
    Slices {
        /// The side of the square.
        side: u32,
        /// The most slices; 1: no picture is cut.
        most: u32,
    },
    /// The whole picture in a square of `side`. Long pictures are followed by parts along the longer side, each in such a square.
    Scan {
        /// The side of the square.
        side: u32,
        /// The least side of a part before it is resized.
        least: u32,
        /// The most parts.
        most: u32,
        /// How much longer the longer side must be.
        ratio: f64,
    },
    /// As many squares of `tile` as fit the proportion of the sides best, if a side is longer than that. Then the whole picture in a
    /// square of `side` with borders of a colour.
    Views {
        /// The side of a tile.
        tile: u32,
        /// The fewest and the most tiles.
        count: [u32; 2],
        /// The side of the whole picture.
        side: u32,
        /// Red, green and blue of borders.
        border: [u8; 3],
        /// Lines of features begin with those of all tiles of a line, and a learned feature ends each. Otherwise tiles come one after
        /// the other.
        lined: bool,
    },
    /// One square of this side. Pixels beyond whole patches are left out.
    Square {
        /// The side.
        side: u32,
    },
    /// The shorter side becomes `side`, and a square is cut out of the middle. Pixels beyond whole patches are left out.
    Middle {
        /// The side.
        side: u32,
        /// The middle between two pixels is at the even one, as torchvision has it. Otherwise it is at the first one.
        even: bool,
    },
    /// Sides in their proportion, each a multiple of a feature's side, with pixels within bounds.
    Pixels {
        /// The fewest pixels.
        least: u64,
        /// The most pixels.
        most: u64,
        /// What becomes first of pictures with a side below a feature's.
        grows: Growth,
    },
    /// The largest sides in their proportion, each a multiple of a feature's side, with at most this many features.
    Fill {
        /// The most features.
        most: u32,
    },
    /// Pictures with too many patches become smaller, and black borders to the right and below make both sides multiples of a
    /// feature's.
    Bordered {
        /// The most patches before there are borders.
        most: u32,
        /// The most patches of a side.
        side: u32,
    },
    /// Sides in their proportion, each rounded up to a multiple of a feature's side, the longer at most `longest`.
    Longest {
        /// The longer side.
        longest: u32,
    },
}

/// How pictures grow whose side is below a feature's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Growth {
    /// They do not.
    None,
    /// PaddleOCR-VL: one side after the other becomes a feature's, with the other one in proportion.
    Sides,
    /// GLM: the shorter side becomes a feature's, both rounded down.
    Whole,
}

/// The order of a patch's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// All red ones, line by line, then green and blue ones. Each colour is there `frames` times, as an encoder of videos reads
    /// a picture that stands still.
    Planes {
        /// Frames of a patch.
        frames: u32,
    },
    /// All values of the first frame, then those of the second one, each as in `Planes`.
    Frames {
        /// Frames of a patch.
        frames: u32,
    },
    /// Pixel by pixel.
    Pixels,
}

impl Values {
    /// Frames of a patch.
    pub fn frames(self) -> u32 {
        match self {
            Values::Planes { frames } | Values::Frames { frames } => frames,
            Values::Pixels => 1,
        }
    }
}

/// Makes tiles of pictures.
#[derive(Clone, Debug, PartialEq)]
pub struct Processor {
    /// How pictures are resized and cut.
    pub method: Method,
    /// How pixels are resized.
    pub filter: Filter,
    /// The side of a patch.
    pub patch: u32,
    /// Patches along a feature's side.
    pub merge: u32,
    /// Patches along the side of a square of neighbouring rows: a feature's, unless the encoder merges features later.
    pub neighbours: u32,
    /// Patches along the side of a part of a feature, for encoders that make parts first. Parts have the numbers of windows.
    pub part: Option<u32>,
    /// Squares of neighbouring rows along the side of a window, for encoders whose rows attend within windows.
    pub window: Option<u32>,
    /// A patch's values.
    pub values: Values,
    /// What is subtracted from red, green and blue, which are from 0 to 1.
    pub mean: [f32; 3],
    /// What they are divided by then.
    pub deviation: [f32; 3],
    /// Features of a tile of any size; 0: patches become features.
    pub queries: u32,
    /// Heights and widths of `Padded` pictures: whole tiles.
    pub sizes: Vec<[u32; 2]>,
    /// The most features of a picture.
    pub most_features: u32,
    /// Steps of the time axis in a second of a video; `None`: every picture of it is a step.
    pub ticks: Option<f64>,
    /// What stands around features in the prompt.
    pub marks: Marks,
}

/// A part of a picture that the encoder reads at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tile {
    /// Its pixels: whole patches.
    pub pixels: Pixels,
    /// The same of later frames, for encoders whose patches have several; the last one stays.
    pub later: Vec<Pixels>,
}

impl Tile {
    /// A tile that stands still.
    pub fn still(pixels: Pixels) -> Tile {
        Tile {
            pixels,
            later: Vec::new(),
        }
    }

    /// The pixels of a frame.
    pub fn frame(&self, number: usize) -> &Pixels {
        let later = self.later.get(..number).unwrap_or(&self.later);
        later.last().unwrap_or(&self.pixels)
    }
}

/// A picture that is resized and cut.
#[derive(Clone, Debug, PartialEq)]
pub struct Prepared {
    /// The tiles, in the order of their features.
    pub tiles: Vec<Tile>,
    /// Rows and columns of tiles. They are followed by a tile of the whole picture, unless there are none.
    pub grid: [u32; 2],
    /// Rows and columns of each tile's features.
    pub features: Vec<[u32; 2]>,
    /// Lines of features that stand in the prompt in place of all of them, if some do not: numbers of features, and nothing for the
    /// learned one that ends a line.
    pub lines: Vec<Vec<Option<u32>>>,
    /// The time of each tile on its axis; nothing if all have the same.
    pub times: Vec<u32>,
    pub(crate) marks: Marks,
}

impl Prepared {
    /// The tiles, with rows and columns of their features.
    pub fn parts(&self) -> impl Iterator<Item = (&Tile, [u32; 2])> {
        self.tiles.iter().zip(self.features.iter().copied())
    }

    /// How many features the encoder makes of it.
    pub fn count(&self) -> usize {
        if !self.lines.is_empty() {
            return self.lines.iter().map(Vec::len).sum();
        }
        let each = self
            .features
            .iter()
            .map(|[rows, columns]| (rows * columns) as usize);
        each.sum()
    }
}

/// The largest side of a picture that Idefics 3 resizes to.
const MOST_SIDE: u32 = 4096;
/// The largest ratio of two sides: that of Qwen's processor. It also bounds the memory of a resize.
const MOST_RATIO: u32 = 200;

impl Processor {
    /// Resizes and cuts a picture.
    pub fn prepare(&self, image: &Pixels) -> Result<Prepared, Error> {
        check_ratio(image)?;
        let whole = |pixels| (vec![Tile::still(pixels)], [0, 0]);
        let to = |[width, height]: [u32; 2]| resize(image, width, height, self.filter);
        // Whole patches.
        let used = |side: u32| side - side % self.side();
        let mut lines = Vec::new();
        let (tiles, grid) = match self.method {
            Method::Padded { tile } => {
                let (tiles, grid) = self.padded(image, tile);
                lines = self.unpadded(image, tile, grid);
                (tiles, grid)
            }
            Method::Views { .. } => {
                let (tiles, grid) = self.views(image);
                lines = self.view_lines(&tiles, grid);
                (tiles, grid)
            }
            Method::Square { side } => whole(cut(&to([side, side]), 0, 0, used(side))),
            Method::Slices { side, most } => self.slices(image, side, most),
            Method::Scan { side, .. } => {
                let parts = scanned(image, self.method);
                let parts = parts
                    .iter()
                    .map(|part| resize(part, side, side, self.filter));
                let pixels = [to([side, side])].into_iter().chain(parts);
                (pixels.map(Tile::still).collect(), [0, 0])
            }
            Method::Middle { side, even } => {
                let shorter = u64::from(image.width.min(image.height));
                let [width, height] = [image.width, image.height]
                    .map(|of| (u64::from(of) * u64::from(side) / shorter) as u32);
                let [x, y] = [width, height].map(|of| {
                    let (half, between) = ((of - side) / 2, !(of - side).is_multiple_of(2));
                    half + u32::from(even && between && !half.is_multiple_of(2))
                });
                whole(cut(&to([width, height]), x, y, used(side)))
            }
            Method::Pixels { least, most, grows } => {
                let size = match grows {
                    Growth::None => [image.width, image.height],
                    Growth::Sides => self.grown(image),
                    Growth::Whole => self.grown_whole(image),
                };
                whole(to(self.within(size, least, most, 0.0)))
            }
            Method::Canvas { tile, count } => {
                let (mut tiles, grid) = self.canvas(image, tile, count);
                if tiles.len() == 1 {
                    (tiles, [0, 0])
                } else {
                    let pixels = to([tile, tile]);
                    tiles.push(Tile::still(pixels));
                    (tiles, grid)
                }
            }
            Method::Grid {
                tile,
                count,
                features,
                whole: has_whole,
            } => {
                let [least, most] = features.map(|n| u64::from(n) * u64::from(self.side()).pow(2));
                let size = [image.width, image.height];
                let size = self.within(size, least, most, 1.0);
                if count == [1, 1] || !self.is_large(image, most) {
                    whole(to(size))
                } else {
                    let (mut tiles, grid) = self.canvas(image, tile, count);
                    if has_whole && tiles.len() > 1 {
                        let pixels = to(size);
                        tiles.push(Tile::still(pixels));
                    }
                    (tiles, grid)
                }
            }
            Method::Longest { longest } => whole(to(self.at_most(image, longest))),
            Method::Fill { most } => whole(to(self.filled(image, most))),
            Method::Bordered { most, side } => {
                let [width, height] = self.shrunk(image, most, side);
                let own = self.side();
                let sides = [width, height].map(|n| n.next_multiple_of(own));
                whole(bordered(&to([width, height]), sides, [0, 0]))
            }
            Method::Tiles {
                tile,
                split: false,
                longest,
            } => {
                let [width, height] = longest_side(image.width, image.height, longest);
                let first = to([width, height]);
                whole(resize(&first, tile, tile, self.filter))
            }
            Method::Tiles { longest, tile, .. } => self.tiles(image, longest, tile),
        };
        let side = self.side();
        let groups = tiles
            .iter()
            .map(|tile| [tile.pixels.height / side, tile.pixels.width / side]);
        let mut features: Vec<[u32; 2]> = groups.collect();
        let most = self.most_patches() / (self.merge * self.merge);
        let largest = features.iter().map(|[rows, columns]| rows * columns).max();
        if self.queries > 0 {
            features.fill([1, self.queries]);
        }
        if let Some(found) = largest.filter(|found| *found > most) {
            let (width, height) = (image.width, image.height);
            return Err(Error::Features {
                width,
                height,
                found,
                most,
            });
        }
        Ok(Prepared {
            features,
            tiles,
            grid,
            lines,
            times: Vec::new(),
            marks: self.marks,
        })
    }

    /// The processor for frames of a video: none is cut, and each becomes at most this many features if its family scales pictures.
    pub fn of_video(&self, most_features: u32) -> Processor {
        let most_features = self.most_features.min(most_features.max(1));
        let one = [1, 1];
        let method = match self.method {
            Method::Tiles { longest, tile, .. } => Method::Tiles {
                longest,
                tile,
                split: false,
            },
            Method::Canvas { tile, .. } | Method::Padded { tile } => Method::Square { side: tile },
            Method::Grid {
                tile,
                features,
                whole,
                ..
            } => Method::Grid {
                tile,
                count: one,
                features,
                whole,
            },
            Method::Slices { side, .. } => Method::Slices { side, most: 1 },
            Method::Scan { side, .. } => Method::Square { side },
            Method::Views {
                tile,
                side,
                border,
                lined,
                ..
            } => Method::Views {
                tile,
                count: [0, 0],
                side,
                border,
                lined,
            },
            // Gemma 4.
            Method::Fill { most } => Method::Fill { most: most.min(70) },
            other => other,
        };
        Processor {
            method,
            most_features,
            ..self.clone()
        }
    }

    /// Makes one of the frames of a video, of which every picture lasts this many seconds. They come one after the other, resized
    /// ([`Processor::prepare`]), so that only one need be there as it was decoded.
    pub fn join_frames<E: From<Error>>(
        &self,
        mut frames: impl Iterator<Item = Result<Prepared, E>>,
        seconds: f64,
    ) -> Result<Prepared, E> {
        let together = self.values.frames() as usize;
        let mut all: Option<Prepared> = None;
        for number in 0.. {
            let Some(first) = frames.next() else { break };
            let mut prepared = first?;
            for later in frames.by_ref().take(together - 1) {
                for (tile, later) in prepared.tiles.iter_mut().zip(later?.tiles) {
                    if [later.pixels.width, later.pixels.height]
                        != [tile.pixels.width, tile.pixels.height]
                    {
                        return Err(Error::Frames.into());
                    }
                    tile.later.push(later.pixels);
                }
            }
            let time = f64::from(number) * self.ticks.map_or(1.0, |ticks| ticks * seconds);
            match &mut all {
                None => {
                    prepared.times = vec![0; prepared.tiles.len()];
                    all = Some(prepared);
                }
                Some(all) => {
                    all.times
                        .extend(vec![time.clamp(0.0, 1e6) as u32; prepared.tiles.len()]);
                    all.tiles.extend(prepared.tiles);
                    all.features.extend(prepared.features);
                }
            }
        }
        all.ok_or(Error::Frames.into())
    }

    /// The side of a feature in pixels.
    pub fn side(&self) -> u32 {
        self.patch * self.merge
    }

    /// The most patches of a tile.
    pub fn most_patches(&self) -> u32 {
        let square = |side: u32| (side / self.patch).pow(2);
        match self.method {
            Method::Tiles { tile, .. } | Method::Canvas { tile, .. } | Method::Padded { tile } => {
                square(tile)
            }
            Method::Views { tile, side, .. } => square(tile.max(side)),
            Method::Grid { tile, features, .. } => {
                square(tile).max(features[1] * self.merge * self.merge)
            }
            Method::Square { side } | Method::Middle { side, .. } | Method::Scan { side, .. } => {
                square(side)
            }
            // Rounded sides of long slices make them larger.
            Method::Slices { side, .. } => {
                let (side, merge) = (side.div_ceil(self.patch), self.merge);
                let most = side * side + 8 * merge * side + merge * merge;
                most.next_multiple_of(merge * merge)
            }
            Method::Fill { most } => most.min(self.most_features) * self.merge * self.merge,
            Method::Pixels { .. } | Method::Longest { .. } | Method::Bordered { .. } => {
                self.most_features * self.merge * self.merge
            }
        }
    }

    /// The most pixels of a tile of any size.
    fn most_pixels(&self) -> u64 {
        u64::from(self.most_features) * u64::from(self.side()).pow(2)
    }

    /// Sides in their proportion, with pixels within bounds, of at least `fewest` features unless the bounds say otherwise.
    fn within(&self, [width, height]: [u32; 2], least: u64, most: u64, fewest: f64) -> [u32; 2] {
        let (most, side) = (most.min(self.most_pixels()), f64::from(self.side()));
        let least = least.min(most);
        let sides = [f64::from(width), f64::from(height)];
        let of = |units: f64| (units.max(1.0) * side) as u32;
        // Python rounds halves to the even number.
        let units = sides.map(|s| (s / side).round_ties_even().max(fewest));
        let rounded = units.map(|u| (u * side) as u64);
        let pixels = rounded[0] * rounded[1];
        if pixels > most {
            let beta = (sides[0] * sides[1] / most as f64).sqrt();
            sides.map(|s| of((s / beta / side).floor()))
        } else if pixels < least {
            let beta = (least as f64 / (sides[0] * sides[1])).sqrt();
            sides.map(|s| of((s * beta / side).ceil()))
        } else {
            rounded.map(|s| s as u32)
        }
    }

    /// Width and height in proportion, such that neither is below a feature's side.
    fn grown(&self, image: &Pixels) -> [u32; 2] {
        let side = self.side();
        let of = |other: u32, own: u32| {
            let grown = f64::from(other) * f64::from(side) / f64::from(own);
            grown.round_ties_even() as u32
        };
        let [mut width, mut height] = [image.width, image.height];
        if height < side {
            (width, height) = (of(width, height), side);
        }
        if width < side {
            (width, height) = (side, of(height, width));
        }
        [width, height]
    }

    /// Width and height as a feature's side allows, in proportion.
    fn grown_whole(&self, image: &Pixels) -> [u32; 2] {
        let sides = [image.width, image.height];
        let side = f64::from(self.side());
        let scale = sides.map(|own| side / f64::from(own)).into_iter();
        let scale = scale.fold(1.0, f64::max);
        sides.map(|own| ((f64::from(own) * scale) as u32).max(1))
    }

    /// Whether a picture has twice the most pixels or more.
    fn is_large(&self, image: &Pixels, most: u64) -> bool {
        let side = f64::from(self.side());
        let sides = [image.width, image.height].map(|s| {
            let rounded = (f64::from(s) / side).round_ties_even() * side;
            rounded.max(self.patch.into())
        });
        sides[0] * sides[1] > 2.0 * most as f64
    }

    /// The grid of tiles whose proportion is closest to the picture's, and its tiles. Of several grids of one proportion, the
    /// largest of less than twice the picture's pixels.
    fn canvas(&self, image: &Pixels, tile: u32, [least, most]: [u32; 2]) -> (Vec<Tile>, [u32; 2]) {
        let sizes = (1..=most).flat_map(|w| (1..=most).map(move |h| [w, h]));
        let fits = |[w, h]: &[u32; 2]| (least..=most).contains(&(w * h));
        let mut sizes: Vec<[u32; 2]> = sizes.filter(fits).collect();
        sizes.sort_by_key(|[w, h]| w * h);
        let ratio = f64::from(image.width) / f64::from(image.height);
        let area = f64::from(image.width) * f64::from(image.height);
        let (mut closest, mut best) = (f64::INFINITY, [1, 1]);
        for [w, h] in sizes {
            let off = (ratio - f64::from(w) / f64::from(h)).abs();
            let pixels = f64::from(tile).powi(2) * f64::from(w * h);
            if off < closest || off == closest && area > 0.5 * pixels {
                (closest, best) = (off, [w, h]);
            }
        }
        let [columns, rows] = best;
        let all = resize(image, columns * tile, rows * tile, self.filter);
        let places = (0..rows).flat_map(|row| (0..columns).map(move |column| (column, row)));
        let tiles =
            places.map(|(column, row)| Tile::still(cut(&all, column * tile, row * tile, tile)));
        (tiles.collect(), [rows, columns])
    }

    /// Tiles of a large picture, then the whole one with borders.
    fn views(&self, image: &Pixels) -> (Vec<Tile>, [u32; 2]) {
        let Method::Views {
            tile,
            count,
            side,
            border,
            lined,
        } = self.method
        else {
            return (Vec::new(), [0, 0]);
        };
        let sides = [image.width, image.height];
        let longer = image.width.max(image.height);
        let (mut tiles, grid) = if longer > tile && count[1] > 0 {
            self.canvas(image, tile, count)
        } else {
            (Vec::new(), [0, 0])
        };
        // Each processor computes the other side in its own way.
        let [width, height] = sides.map(|of| {
            let exact = if lined {
                f64::from(of) / f64::from(longer) * f64::from(side)
            } else {
                f64::from(of) * (f64::from(side) / f64::from(longer))
            };
            (exact.round_ties_even() as u32).clamp(1, side)
        });
        let gap = |own: u32| {
            let half = f64::from(side - own) / 2.0;
            let half = if lined {
                half.round_ties_even()
            } else {
                half.floor()
            };
            half as u32
        };
        let whole = resize(image, width, height, self.filter);
        let at = [gap(width), gap(height)];
        tiles.push(Tile::still(framed(&whole, [side; 2], at, border)));
        (tiles, grid)
    }

    /// The features of views as they stand in the prompt. One more than all is what ends the picture.
    fn view_lines(&self, tiles: &[Tile], [rows, columns]: [u32; 2]) -> Vec<Vec<Option<u32>>> {
        let lined = matches!(self.method, Method::Views { lined: true, .. });
        let sides = |tile: &Tile| tile.pixels.width / self.side();
        let [own, last] = [tiles.first(), tiles.last()].map(|tile| tile.map_or(0, sides));
        let parts = rows * columns * own * own;
        let all = parts + last * last;
        let end = |mut line: Vec<Option<u32>>| {
            line.extend(lined.then_some(None));
            line
        };
        if !lined {
            return vec![(0..=all).map(Some).collect()];
        }
        let of_tiles = (0..rows * own).map(|line| {
            let at = |column: u32| {
                let tile = line / own * columns + column / own;
                tile * own * own + line % own * own + column % own
            };
            end((0..columns * own).map(|column| Some(at(column))).collect())
        });
        let of_whole = (0..last).map(|line| {
            let first = parts + line * last;
            end((first..first + last).map(Some).collect())
        });
        of_tiles.chain(of_whole).chain([vec![Some(all)]]).collect()
    }

    /// The whole picture, and its slices with their rows and columns.
    fn slices(&self, image: &Pixels, side: u32, most: u32) -> (Vec<Tile>, [u32; 2]) {
        let sides = [image.width, image.height].map(f64::from);
        let to = |[width, height]: [u32; 2]| resize(image, width, height, self.filter);
        let grid = slice_grid(sides, side, most);
        let pixels = to(self.near(sides, side, grid.is_none()));
        let mut tiles = vec![Tile::still(pixels)];
        let Some([columns, rows]) = grid else {
            return (tiles, [0, 0]);
        };
        let grid = [columns, rows].map(f64::from);
        let part = |axis: usize| {
            let whole = (sides[axis] / grid[axis]).round_ties_even() * grid[axis];
            whole.max(grid[axis]) / grid[axis]
        };
        let [width, height] = self.near([part(0), part(1)], side, true);
        let all = to([width * columns, height * rows]);
        for row in 0..rows {
            for column in 0..columns {
                let pixels = rectangle(&all, [column * width, row * height], [width, height]);
                tiles.push(Tile::still(pixels));
            }
        }
        (tiles, [rows, columns])
    }

    /// Sides of whole features with about as many pixels as a square, if there are more or they may grow.
    fn near(&self, [width, height]: [f64; 2], side: u32, grows: bool) -> [u32; 2] {
        let (side, own_side) = (f64::from(side), f64::from(self.side()));
        let sides = if grows || width * height > side * side {
            let ratio = width / height;
            let height = (side / ratio.sqrt()).trunc();
            [(height * ratio).trunc(), height]
        } else {
            [width, height]
        };
        sides.map(|own| ((own / own_side).round_ties_even() * own_side).max(own_side) as u32)
    }

    /// The size that keeps most of the picture and, of several, has the least of borders.
    fn best_size(&self, image: &Pixels) -> [u32; 2] {
        let sides = [image.height, image.width].map(f64::from);
        let area = sides[0] * sides[1];
        let (mut kept, mut lost, mut best) = (0.0, f64::INFINITY, [0, 0]);
        for size in &self.sizes {
            let [height, width] = size.map(f64::from);
            let scale = (width / sides[1]).min(height / sides[0]);
            let scaled = sides.map(|side| (side * scale).floor());
            let own = (scaled[0] * scaled[1]).min(area);
            let rest = height * width - own;
            if own > kept || own == kept && rest < lost {
                (kept, lost, best) = (own, rest, *size);
            }
        }
        best
    }

    /// The tiles, that of the whole picture first, and rows and columns of the others.
    fn padded(&self, image: &Pixels, tile: u32) -> (Vec<Tile>, [u32; 2]) {
        let [height, width] = self.best_size(image);
        let scales = [
            f64::from(height) / f64::from(image.height),
            f64::from(width) / f64::from(image.width),
        ];
        let fitted = |side: u32, scale: f64, most: u32| {
            let side = (f64::from(side) * scale).ceil() as u32;
            side.clamp(1, most)
        };
        let [inner_height, inner_width] = if scales[1] < scales[0] {
            [fitted(image.height, scales[1], height), width]
        } else {
            [height, fitted(image.width, scales[0], width)]
        };
        let inner = resize(image, inner_width, inner_height, self.filter);
        let [top, left] = [(height - inner_height) / 2, (width - inner_width) / 2];
        let all = bordered(&inner, [width, height], [left, top]);
        let grid = [height / tile, width / tile];
        let pixels = resize(image, tile, tile, self.filter);
        let mut tiles = vec![Tile::still(pixels)];
        for row in 0..grid[0] {
            for column in 0..grid[1] {
                let pixels = cut(&all, column * tile, row * tile, tile);
                tiles.push(Tile::still(pixels));
            }
        }
        (tiles, grid)
    }

    /// The features of the whole picture in one line, then the lines of the tiles' features that are not of borders.
    fn unpadded(&self, image: &Pixels, tile: u32, grid: [u32; 2]) -> Vec<Vec<Option<u32>>> {
        let side = tile / self.side();
        let [rows, columns] = grid.map(|n| n * side);
        let [height, width] = [image.height, image.width].map(f64::from);
        // Python's `round(x, 7)` before the fraction is cut off.
        let whole = |side: f64| ((side * 1e7).round_ties_even() / 1e7) as u32;
        let [of_rows, of_columns] = [rows, columns].map(f64::from);
        let [top, left] = if width / height > of_columns / of_rows {
            let own = whole(height * (of_columns / width));
            [rows.saturating_sub(own) / 2, 0]
        } else {
            let own = whole(width * (of_rows / height));
            [0, columns.saturating_sub(own) / 2]
        };
        let number = |row: u32, column: u32| {
            let tile = 1 + row / side * grid[1] + column / side;
            tile * side * side + row % side * side + column % side
        };
        let line = |row: u32| {
            let own = (left..columns - left).map(|column| Some(number(row, column)));
            own.chain([None]).collect()
        };
        let first = (0..side * side).map(Some).collect();
        let rest = (top..rows - top).map(line);
        [first].into_iter().chain(rest).collect()
    }

    fn filled(&self, image: &Pixels, most: u32) -> [u32; 2] {
        let (most, side) = (most.min(self.most_features), self.side());
        let sides = [image.width, image.height].map(f64::from);
        let pixels = f64::from(most) * f64::from(side).powi(2);
        let factor = (pixels / (sides[0] * sides[1])).sqrt();
        let units = sides.map(|own| (factor * own / f64::from(side)).floor() as u32);
        // The shorter side of a long picture would be nothing.
        let long = |own: u32, other: u32| (own / other).min(most);
        let units = match units {
            [_, 0] => [long(image.width, image.height), 1],
            [0, _] => [1, long(image.height, image.width)],
            units => units,
        };
        units.map(|units| units * side)
    }

    /// Sides in their proportion with at most these patches, and with borders at most the most features.
    fn shrunk(&self, image: &Pixels, most: u32, side: u32) -> [u32; 2] {
        let sides = [image.width, image.height];
        let patches = sides.map(|own| f64::from((own / self.patch).max(1)));
        let longest = side * self.patch;
        let mut most = f64::from(most);
        loop {
            let of_sides = sides.map(|own| f64::from(longest) / f64::from(own));
            let scale = (most / (patches[0] * patches[1])).sqrt();
            let scale = scale.min(of_sides[0]).min(of_sides[1]).min(1.0);
            let own = sides.map(|own| ((f64::from(own) * scale) as u32).clamp(1, longest));
            let [columns, rows] = own.map(|own| own.div_ceil(self.side()));
            if columns * rows <= self.most_features || most <= 1.0 {
                return own;
            }
            most = most.min(patches[0] * patches[1]) * 0.98;
        }
    }

    fn at_most(&self, image: &Pixels, longest: u32) -> [u32; 2] {
        let sides = [f64::from(image.width), f64::from(image.height)];
        let fitting = |longest: f64| {
            let ratio = (sides[0] / longest).max(sides[1] / longest);
            sides.map(|s| if ratio > 1.0 { (s / ratio).floor() } else { s })
        };
        let whole = |sides: [f64; 2]| {
            let units = sides.map(|s| (s as u32).max(1).div_ceil(self.side()));
            (units[0] * units[1], units.map(|u| u * self.side()))
        };
        let mut longest = f64::from(longest);
        loop {
            let (features, sides) = whole(fitting(longest));
            if features <= self.most_features || longest <= f64::from(self.side()) {
                return sides;
            }
            longest = longest.min(sides[0].max(sides[1]).into()) - f64::from(self.side());
        }
    }

    fn tiles(&self, image: &Pixels, longest: u32, tile: u32) -> (Vec<Tile>, [u32; 2]) {
        let [width, height] = longest_side(image.width, image.height, longest);
        let first = resize(image, width, height, self.filter);
        let ratio = f64::from(width) / f64::from(height);
        let up = |side: u32| side.div_ceil(tile) * tile;
        let (width, height) = if width >= height {
            let width = up(width);
            (width, up((f64::from(width) / ratio) as u32))
        } else {
            let height = up(height);
            (up((f64::from(height) * ratio) as u32), height)
        };
        let (width, height) = (width.max(tile), height.max(tile));
        let second = resize(&first, width, height, self.filter);
        let [rows, columns] = [height / tile, width / tile];
        if rows * columns == 1 {
            let pixels = second;
            return (vec![Tile::still(pixels)], [0, 0]);
        }
        let mut tiles = Vec::new();
        for row in 0..rows {
            for column in 0..columns {
                let pixels = cut(&second, column * tile, row * tile, tile);
                tiles.push(Tile::still(pixels));
            }
        }
        let pixels = resize(&second, tile, tile, self.filter);
        tiles.push(Tile::still(pixels));
        (tiles, [rows, columns])
    }
}

/// Columns and rows of the slices of a picture that is larger than a square: of about as many as it has times the square's pixels, those
/// whose proportion is closest to the picture's.
fn slice_grid([width, height]: [f64; 2], side: u32, most: u32) -> Option<[u32; 2]> {
    let ratio = width * height / f64::from(side).powi(2);
    let wanted = (ratio.ceil() as u32).min(most);
    if wanted <= 1 {
        return None;
    }
    let proportion = (width / height).ln();
    let (mut closest, mut best) = (f64::INFINITY, [1, 1]);
    for count in [wanted - 1, wanted, wanted + 1] {
        if count == 1 || count > most {
            continue;
        }
        for columns in (1..=count).filter(|columns| count.is_multiple_of(*columns)) {
            let rows = count / columns;
            let off = (proportion - (f64::from(columns) / f64::from(rows)).ln()).abs();
            if off < closest {
                (closest, best) = (off, [columns, rows]);
            }
        }
    }
    Some(best)
}

/// The parts of a long picture along its longer side.
fn scanned(image: &Pixels, method: Method) -> Vec<Pixels> {
    let Method::Scan {
        least, most, ratio, ..
    } = method
    else {
        return Vec::new();
    };
    let (width, height) = (image.width, image.height);
    let (longer, shorter) = (width.max(height), width.min(height));
    let own = f64::from(longer) / f64::from(shorter);
    if own < ratio {
        return Vec::new();
    }
    let count = ((own + 0.5).floor() as u32).min(longer / least);
    let count = count.max(2).min(most);
    let part = longer.div_ceil(count);
    if part.min(shorter) < least {
        return Vec::new();
    }
    let starts = (0..count).map(|number| number * part);
    let cut = |start: u32| {
        // The last part may be shorter.
        let along = part.min(longer - start);
        if width >= height {
            rectangle(image, [start, 0], [along, height])
        } else {
            rectangle(image, [0, start], [width, along])
        }
    };
    starts.filter(|start| *start < longer).map(cut).collect()
}

/// Refuses pictures that are hardly more than a line.
fn check_ratio(image: &Pixels) -> Result<(), Error> {
    let (width, height) = (image.width, image.height);
    let most = MOST_RATIO;
    if width.max(height) > width.min(height).saturating_mul(most) {
        return Err(Error::Shape {
            width,
            height,
            most,
        });
    }
    Ok(())
}

/// Makes the longer side `longest` and the other one even, then both at most 4096.
fn longest_side(width: u32, height: u32, longest: u32) -> [u32; 2] {
    let ratio = f64::from(width) / f64::from(height);
    let even = |side: u32| (side + side % 2).max(1);
    let [width, height] = if width >= height {
        [longest, even((f64::from(longest) / ratio) as u32)]
    } else {
        [even((f64::from(longest) * ratio) as u32), longest]
    };
    let ratio = f64::from(width) / f64::from(height);
    let most = f64::from(MOST_SIDE);
    if width >= height && width > MOST_SIDE {
        [MOST_SIDE, ((most / ratio) as u32).max(1)]
    } else if height > width && height > MOST_SIDE {
        [((most * ratio) as u32).max(1), MOST_SIDE]
    } else {
        [width, height]
    }
}

/// A picture with black borders, such that its first pixel is in this column and line.
fn bordered(image: &Pixels, sides: [u32; 2], at: [u32; 2]) -> Pixels {
    framed(image, sides, at, [0; 3])
}

/// The same with borders of a colour.
fn framed(
    image: &Pixels,
    [width, height]: [u32; 2],
    [left, top]: [u32; 2],
    colour: [u8; 3],
) -> Pixels {
    let (line, own) = (3 * width as usize, 3 * image.width as usize);
    let mut bytes = colour.repeat(width as usize * height as usize);
    let lines = bytes.chunks_exact_mut(line).skip(top as usize);
    for (line, own) in lines.zip(image.bytes.chunks_exact(own)) {
        line[3 * left as usize..][..own.len()].copy_from_slice(own);
    }
    Pixels {
        width,
        height,
        bytes,
    }
}

/// A square of a picture.
fn cut(image: &Pixels, x: u32, y: u32, side: u32) -> Pixels {
    rectangle(image, [x, y], [side, side])
}

/// A part of a picture.
fn rectangle(image: &Pixels, [x, y]: [u32; 2], [width, height]: [u32; 2]) -> Pixels {
    let line = 3 * image.width as usize;
    let (from, length) = (3 * x as usize, 3 * width as usize);
    let lines = image.bytes.chunks_exact(line);
    let lines = lines.skip(y as usize).take(height as usize);
    Pixels {
        width,
        height,
        bytes: lines
            .flat_map(|line| &line[from..from + length])
            .copied()
            .collect(),
    }
}
