//! PLY files as 3-D Gaussian splatting writes them (Turk 1994; properties of Kerbl et al. 2023):
//! binary little-endian or ascii, one element `vertex` of numbers.
//!
//! The header is read first and must agree with the length of the file before anything is allocated for
//! splats. Numbers of any type are read as F32; NaN and infinities are numbers.

use super::{Scene, SplatError};

/// The longest header that is read; those of scenes have about 2 KiB.
const MAX_HEADER: usize = 1 << 20;
/// Coefficients of one channel that are not of degree 0, by what files have of all channels.
const RESTS: [usize; 4] = [0, 9, 24, 45];

/// How a number is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stored {
    I8,
    U8,
    I16,
    U16,
    I32,
    U32,
    F32,
    F64,
}

impl Stored {
    fn from_name(name: &str) -> Option<Stored> {
        Some(match name {
            "char" | "int8" => Stored::I8,
            "uchar" | "uint8" => Stored::U8,
            "short" | "int16" => Stored::I16,
            "ushort" | "uint16" => Stored::U16,
            "int" | "int32" => Stored::I32,
            "uint" | "uint32" => Stored::U32,
            "float" | "float32" => Stored::F32,
            "double" | "float64" => Stored::F64,
            _ => return None,
        })
    }

    fn size_bytes(self) -> usize {
        match self {
            Stored::I8 | Stored::U8 => 1,
            Stored::I16 | Stored::U16 => 2,
            Stored::I32 | Stored::U32 | Stored::F32 => 4,
            Stored::F64 => 8,
        }
    }

    /// The number at the beginning of `bytes`, which are as many as it has or more.
    fn read(self, bytes: &[u8]) -> f32 {
        fn first<const N: usize>(bytes: &[u8]) -> [u8; N] {
            std::array::from_fn(|i| bytes[i])
        }
        match self {
            Stored::I8 => f32::from(i8::from_le_bytes(first(bytes))),
            Stored::U8 => f32::from(bytes[0]),
            Stored::I16 => f32::from(i16::from_le_bytes(first(bytes))),
            Stored::U16 => f32::from(u16::from_le_bytes(first(bytes))),
            Stored::I32 => i32::from_le_bytes(first(bytes)) as f32,
            Stored::U32 => u32::from_le_bytes(first(bytes)) as f32,
            Stored::F32 => f32::from_le_bytes(first(bytes)),
            Stored::F64 => f64::from_le_bytes(first(bytes)) as f32,
        }
    }
}

#[derive(Clone, Debug)]
struct Property {
    name: String,
    /// `None` for a list.
    stored: Option<Stored>,
}

#[derive(Clone, Debug)]
struct Element {
    name: String,
    count: u64,
    properties: Vec<Property>,
}

impl Element {
    /// The size of one, all properties being numbers.
    fn stride(&self) -> Result<usize, SplatError> {
        let mut sum = 0;
        for property in &self.properties {
            let Some(stored) = property.stored else {
                return Err(SplatError::List {
                    element: self.name.clone(),
                    property: property.name.clone(),
                });
            };
            sum += stored.size_bytes();
        }
        Ok(sum)
    }

    /// Where a property stands.
    fn place(&self, name: &str) -> Option<usize> {
        self.properties.iter().position(|p| p.name == name)
    }

    fn truncated(&self, need: u128, found: usize) -> SplatError {
        SplatError::Truncated {
            element: self.name.clone(),
            count: self.count,
            need,
            found,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Ascii,
    Binary,
}

struct Header {
    format: Format,
    elements: Vec<Element>,
    /// Where the data begins.
    len: usize,
    /// Lines of the header.
    lines: usize,
}

/// Lines, without their ends (`\n`, `\r\n`), and the place after each.
fn lines(bytes: &[u8]) -> impl Iterator<Item = (&[u8], usize)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let rest = bytes.get(at..).filter(|rest| !rest.is_empty())?;
        let end = rest.iter().position(|&b| b == b'\n');
        let line = &rest[..end.unwrap_or(rest.len())];
        at += end.map_or(rest.len(), |end| end + 1);
        Some((line.strip_suffix(b"\r").unwrap_or(line), at))
    })
}

impl Header {
    fn read(bytes: &[u8]) -> Result<Header, SplatError> {
        let head = &bytes[..bytes.len().min(MAX_HEADER)];
        let mut all = lines(head).enumerate();
        if all.next().is_none_or(|(_, (line, _))| line != b"ply") {
            return Err(SplatError::NotPly);
        }
        let (mut format, mut elements) = (None, Vec::new());
        for (at, (line, end)) in all {
            let wrong = |reason: String| SplatError::Header {
                line: at + 1,
                reason,
            };
            let line = str::from_utf8(line)
                .map_err(|_| wrong("not text; the header may be incomplete".to_string()))?;
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            match words.as_slice() {
                ["comment" | "obj_info", ..] | [] => {}
                ["format", "ascii", "1.0"] => format = Some(Format::Ascii),
                ["format", "binary_little_endian", "1.0"] => format = Some(Format::Binary),
                ["format", found @ ..] => {
                    let found = found.join(" ");
                    return Err(SplatError::Format { found });
                }
                ["element", name, count] => {
                    let count = count.parse().ok();
                    let count = count.ok_or_else(|| wrong(format!("`{line}` has no count")))?;
                    add_element(&mut elements, name, count)?;
                }
                ["property", rest @ ..] => {
                    add_property(&mut elements, rest, line).map_err(|e| match e {
                        Bad::Line(reason) => wrong(reason),
                        Bad::Twice(e) => e,
                    })?;
                }
                ["end_header"] => {
                    let format = format.ok_or_else(|| wrong("no line `format`".to_string()))?;
                    return Ok(Header {
                        format,
                        elements,
                        len: end,
                        lines: at + 1,
                    });
                }
                _ => return Err(wrong(format!("`{line}` is not known"))),
            }
        }
        Err(SplatError::NoEnd {
            searched: head.len(),
        })
    }
}

fn add_element(elements: &mut Vec<Element>, name: &str, count: u64) -> Result<(), SplatError> {
    if elements.iter().any(|e| e.name == name) {
        return Err(SplatError::Twice {
            what: "element",
            name: name.to_string(),
        });
    }
    elements.push(Element {
        name: name.to_string(),
        count,
        properties: Vec::new(),
    });
    Ok(())
}

/// Why a property is refused.
enum Bad {
    Line(String),
    Twice(SplatError),
}

fn add_property(elements: &mut [Element], words: &[&str], line: &str) -> Result<(), Bad> {
    let unknown = |name: &str| Bad::Line(format!("`{name}` is no type of number"));
    let stored = |name: &str| Stored::from_name(name).ok_or_else(|| unknown(name));
    let (name, stored) = match words {
        ["list", length, item, name] => {
            stored(length)?;
            stored(item)?;
            (name, None)
        }
        [kind, name] => (name, Some(stored(kind)?)),
        _ => return Err(Bad::Line(format!("`{line}` is no property"))),
    };
    let Some(element) = elements.last_mut() else {
        return Err(Bad::Line("a property before any element".to_string()));
    };
    if element.properties.iter().any(|p| p.name == *name) {
        return Err(Bad::Twice(SplatError::Twice {
            what: "property",
            name: name.to_string(),
        }));
    }
    element.properties.push(Property {
        name: name.to_string(),
        stored,
    });
    Ok(())
}

/// Where the numbers of a splat stand among the properties of a vertex.
struct Places {
    position: [usize; 3],
    log_scales: [usize; 3],
    rotation: [usize; 4],
    opacity: usize,
    /// Functions by channel, as colours lie: `[K][3]`.
    colors: Vec<usize>,
}

impl Places {
    fn of(element: &Element) -> Result<Places, SplatError> {
        let mut missing = Vec::new();
        let mut place = |name: &str| {
            let at = element.place(name);
            if at.is_none() {
                missing.push(format!("`{name}`"));
            }
            at.unwrap_or(0)
        };
        let position = ["x", "y", "z"].map(&mut place);
        let log_scales = ["scale_0", "scale_1", "scale_2"].map(&mut place);
        let rotation = ["rot_0", "rot_1", "rot_2", "rot_3"].map(&mut place);
        let opacity = place("opacity");
        let mut colors = ["f_dc_0", "f_dc_1", "f_dc_2"].map(&mut place).to_vec();
        let all = element.properties.iter();
        let found = all.filter(|p| p.name.starts_with("f_rest_")).count();
        if !RESTS.contains(&found) {
            return Err(SplatError::Harmonics { found });
        }
        // In files channel by channel.
        let each = found / 3;
        for k in 0..each {
            colors.extend([0, 1, 2].map(|c| place(&format!("f_rest_{}", c * each + k))));
        }
        if !missing.is_empty() {
            let names = missing.join(", ");
            return Err(SplatError::Missing { names });
        }
        Ok(Places {
            position,
            log_scales,
            rotation,
            opacity,
            colors,
        })
    }

    /// Adds a splat from its numbers by property.
    fn push(&self, scene: &mut Scene, number: &dyn Fn(usize) -> f32) {
        scene.positions.extend(self.position.map(number));
        scene.log_scales.extend(self.log_scales.map(number));
        scene.rotations.extend(self.rotation.map(number));
        scene.opacities.push(number(self.opacity));
        scene
            .colors
            .extend(self.colors.iter().map(|&at| number(at)));
    }
}

/// The scene of a file.
///
/// # Errors
/// [`SplatError`]: not PLY, another format, properties missing or unknown, shorter than it says.
pub(super) fn parse(bytes: &[u8]) -> Result<Scene, SplatError> {
    let file = File::of(bytes)?;
    let places = Places::of(file.vertices())?;
    let mut scene = Scene {
        harmonics: places.colors.len() / 3,
        ..Scene::default()
    };
    file.read(
        &mut scene,
        |scene, count| reserve(scene, &places, count),
        |scene, number| places.push(scene, number),
    )?;
    Ok(scene)
}

/// True of a file whose vertices are Gaussians, as far as `opacity` says; else they are points.
///
/// # Errors
/// As [`parse`].
pub(super) fn has_splats(bytes: &[u8]) -> Result<bool, SplatError> {
    let file = File::of(bytes)?;
    Ok(file.vertices().place("opacity").is_some())
}

/// Points and their colours, 0 to 1, three numbers each; gray where there are none.
///
/// # Errors
/// As [`parse`].
pub(super) fn points(bytes: &[u8]) -> Result<(Vec<f32>, Vec<f32>), SplatError> {
    let file = File::of(bytes)?;
    let vertices = file.vertices();
    let position = ["x", "y", "z"].map(|name| vertices.place(name));
    let [Some(x), Some(y), Some(z)] = position else {
        let names = "`x`, `y` and `z`".to_string();
        return Err(SplatError::Missing { names });
    };
    let color = ["red", "green", "blue"].map(|name| {
        let at = vertices.place(name)?;
        // Bytes are of 255.
        let whole = match vertices.properties[at].stored {
            Some(Stored::F32 | Stored::F64) => 1.0,
            _ => 255.0,
        };
        Some((at, whole))
    });
    let mut points = (Vec::new(), Vec::new());
    let room = |(at, colors): &mut (Vec<f32>, Vec<f32>), count: usize| {
        at.reserve(3 * count);
        colors.reserve(3 * count);
    };
    file.read(&mut points, room, |(at, colors), number| {
        at.extend([x, y, z].map(number));
        colors.extend(color.map(|place| place.map_or(0.5, |(at, whole)| number(at) / whole)));
    })?;
    Ok(points)
}

/// A file whose header was read, up to its vertices.
struct File<'a> {
    header: Header,
    /// Where the vertices stand among the elements.
    vertices: usize,
    data: &'a [u8],
}

impl<'a> File<'a> {
    fn of(bytes: &'a [u8]) -> Result<File<'a>, SplatError> {
        let header = Header::read(bytes)?;
        let at = header.elements.iter().position(|e| e.name == "vertex");
        let vertices = at.ok_or(SplatError::NoVertices)?;
        header.elements[vertices].stride()?;
        let data = &bytes[header.len..];
        Ok(File {
            header,
            vertices,
            data,
        })
    }

    fn vertices(&self) -> &Element {
        &self.header.elements[self.vertices]
    }

    /// Makes room for all vertices, then shows the numbers of each by property.
    fn read<T>(
        &self,
        to: &mut T,
        room: impl FnOnce(&mut T, usize),
        push: impl FnMut(&mut T, &dyn Fn(usize) -> f32),
    ) -> Result<(), SplatError> {
        let before = &self.header.elements[..self.vertices];
        match self.header.format {
            Format::Binary => binary(self.data, before, self.vertices(), to, room, push),
            Format::Ascii => ascii(self, before, to, room, push),
        }
    }
}

/// Makes room for `count` Gaussians, which the length of the file allows.
fn reserve(scene: &mut Scene, places: &Places, count: usize) {
    scene.positions.reserve(3 * count);
    scene.log_scales.reserve(3 * count);
    scene.rotations.reserve(4 * count);
    scene.opacities.reserve(count);
    scene.colors.reserve(places.colors.len() * count);
}

fn binary<T>(
    data: &[u8],
    before: &[Element],
    vertices: &Element,
    to: &mut T,
    room: impl FnOnce(&mut T, usize),
    mut push: impl FnMut(&mut T, &dyn Fn(usize) -> f32),
) -> Result<(), SplatError> {
    let mut rest = data;
    let mut taken = |element: &Element| {
        let need = u128::from(element.count) * element.stride()? as u128;
        let len = usize::try_from(need).ok().filter(|&n| n <= rest.len());
        let len = len.ok_or_else(|| element.truncated(need, rest.len()))?;
        let (own, after) = rest.split_at(len);
        rest = after;
        Ok::<_, SplatError>(own)
    };
    for element in before {
        taken(element)?;
    }
    let own = taken(vertices)?;
    let mut columns = Vec::with_capacity(vertices.properties.len());
    let mut offset = 0;
    for stored in vertices.properties.iter().filter_map(|p| p.stored) {
        columns.push((stored, offset));
        offset += stored.size_bytes();
    }
    // As many as there are bytes for: the properties that splats need make a vertex some bytes long.
    room(to, own.len() / offset);
    for row in own.chunks_exact(offset) {
        push(to, &|at| {
            let (stored, offset) = columns[at];
            stored.read(&row[offset..])
        });
    }
    Ok(())
}

fn ascii<T>(
    file: &File<'_>,
    before: &[Element],
    to: &mut T,
    room: impl FnOnce(&mut T, usize),
    mut push: impl FnMut(&mut T, &dyn Fn(usize) -> f32),
) -> Result<(), SplatError> {
    let (data, vertices) = (file.data, file.vertices());
    let width = vertices.properties.len();
    // A digit and a space or line end for each number, but for the last line's end.
    let need = (u128::from(vertices.count) * 2 * width as u128).saturating_sub(1);
    let Some(count) = usize::try_from(vertices.count)
        .ok()
        .filter(|_| need <= data.len() as u128)
    else {
        return Err(vertices.truncated(need, data.len()));
    };
    let mut all = lines(data).zip(file.header.lines + 1..);
    let ends = |element: &Element, done: u64| SplatError::Ends {
        element: element.name.clone(),
        missing: element.count - done,
    };
    for element in before {
        element.stride()?;
        for done in 0..element.count {
            all.next().ok_or_else(|| ends(element, done))?;
        }
    }
    room(to, count);
    let mut numbers = Vec::with_capacity(width);
    for done in 0..vertices.count {
        let ((line, _), at) = all.next().ok_or_else(|| ends(vertices, done))?;
        let wrong = |reason: String| SplatError::Row { line: at, reason };
        let line = str::from_utf8(line).map_err(|_| wrong("not text".to_string()))?;
        numbers.clear();
        for word in line.split_ascii_whitespace() {
            let number: Option<f32> = word.parse().ok();
            numbers.push(number.ok_or_else(|| wrong(format!("`{word}` is no number")))?);
        }
        if numbers.len() != width {
            let found = numbers.len();
            return Err(wrong(format!("{found} numbers instead of {width}")));
        }
        push(to, &|at| numbers[at]);
    }
    Ok(())
}
