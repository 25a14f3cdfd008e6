//! PLY files of 3D Gaussian splatting (Turk 1994; properties of Kerbl et al. 2023): binary
//! little-endian or ASCII, one element `vertex` with numeric properties.
//!
//! The header is parsed first and checked against the file length before memory for splats is
//! allocated. All numeric types are converted to F32; NaN and infinities are accepted.

use crate::{SplatError, SplatScene};

/// Maximum header length in bytes; headers of scenes have about 2 KiB.
const MAX_HEADER: usize = 1 << 20;
/// Valid numbers of `f_rest_*` properties, for harmonics of degree 0 to 3.
const RESTS: [usize; 4] = [0, 9, 24, 45];

/// Storage type of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PlyScalarType {
    I8,
    U8,
    I16,
    U16,
    I32,
    U32,
    F32,
    F64,
}

impl PlyScalarType {
    fn from_name(name: &str) -> Option<PlyScalarType> {
        Some(match name {
            "char" | "int8" => PlyScalarType::I8,
            "uchar" | "uint8" => PlyScalarType::U8,
            "short" | "int16" => PlyScalarType::I16,
            "ushort" | "uint16" => PlyScalarType::U16,
            "int" | "int32" => PlyScalarType::I32,
            "uint" | "uint32" => PlyScalarType::U32,
            "float" | "float32" => PlyScalarType::F32,
            "double" | "float64" => PlyScalarType::F64,
            _ => return None,
        })
    }

    fn size_bytes(self) -> usize {
        match self {
            PlyScalarType::I8 | PlyScalarType::U8 => 1,
            PlyScalarType::I16 | PlyScalarType::U16 => 2,
            PlyScalarType::I32 | PlyScalarType::U32 | PlyScalarType::F32 => 4,
            PlyScalarType::F64 => 8,
        }
    }

    /// Reads the number at the start of `bytes`, which must be long enough.
    fn read(self, bytes: &[u8]) -> f32 {
        fn first<const N: usize>(bytes: &[u8]) -> [u8; N] {
            std::array::from_fn(|i| bytes[i])
        }
        match self {
            PlyScalarType::I8 => f32::from(i8::from_le_bytes(first(bytes))),
            PlyScalarType::U8 => f32::from(bytes[0]),
            PlyScalarType::I16 => f32::from(i16::from_le_bytes(first(bytes))),
            PlyScalarType::U16 => f32::from(u16::from_le_bytes(first(bytes))),
            PlyScalarType::I32 => i32::from_le_bytes(first(bytes)) as f32,
            PlyScalarType::U32 => u32::from_le_bytes(first(bytes)) as f32,
            PlyScalarType::F32 => f32::from_le_bytes(first(bytes)),
            PlyScalarType::F64 => f64::from_le_bytes(first(bytes)) as f32,
        }
    }
}

#[derive(Clone, Debug)]
struct PlyProperty {
    name: String,
    /// Storage type; `None` for a list.
    stored: Option<PlyScalarType>,
}

#[derive(Clone, Debug)]
struct PlyElement {
    name: String,
    count: u64,
    properties: Vec<PlyProperty>,
}

impl PlyElement {
    /// Bytes per element; an error if a property is a list.
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

    /// Index of a property.
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
enum PlyFormat {
    Ascii,
    Binary,
}

struct PlyHeader {
    format: PlyFormat,
    elements: Vec<PlyElement>,
    /// Byte offset of the data.
    len: usize,
    /// Number of header lines.
    lines: usize,
}

/// Lines without their terminators (`\n`, `\r\n`), each with the byte offset after it.
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

impl PlyHeader {
    fn read(bytes: &[u8]) -> Result<PlyHeader, SplatError> {
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
                ["format", "ascii", "1.0"] => format = Some(PlyFormat::Ascii),
                ["format", "binary_little_endian", "1.0"] => format = Some(PlyFormat::Binary),
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
                        PlyPropertyError::Line(reason) => wrong(reason),
                        PlyPropertyError::Twice(e) => e,
                    })?;
                }
                ["end_header"] => {
                    let format = format.ok_or_else(|| wrong("no line `format`".to_string()))?;
                    return Ok(PlyHeader {
                        format,
                        elements,
                        len: end,
                        lines: at + 1,
                    });
                }
                _ => return Err(wrong(format!("unknown header line `{line}`"))),
            }
        }
        Err(SplatError::NoEnd {
            searched: head.len(),
        })
    }
}

fn add_element(elements: &mut Vec<PlyElement>, name: &str, count: u64) -> Result<(), SplatError> {
    if elements.iter().any(|e| e.name == name) {
        return Err(SplatError::Twice {
            what: "element",
            name: name.to_string(),
        });
    }
    elements.push(PlyElement {
        name: name.to_string(),
        count,
        properties: Vec::new(),
    });
    Ok(())
}

/// Error of a property declaration.
enum PlyPropertyError {
    Line(String),
    Twice(SplatError),
}

fn add_property(
    elements: &mut [PlyElement],
    words: &[&str],
    line: &str,
) -> Result<(), PlyPropertyError> {
    let unknown = |name: &str| PlyPropertyError::Line(format!("`{name}` is no type of number"));
    let stored = |name: &str| PlyScalarType::from_name(name).ok_or_else(|| unknown(name));
    let (name, stored) = match words {
        ["list", length, item, name] => {
            stored(length)?;
            stored(item)?;
            (name, None)
        }
        [kind, name] => (name, Some(stored(kind)?)),
        _ => {
            return Err(PlyPropertyError::Line(format!(
                "`{line}` is not a property"
            )));
        }
    };
    let Some(element) = elements.last_mut() else {
        return Err(PlyPropertyError::Line(
            "property before any element".to_string(),
        ));
    };
    if element.properties.iter().any(|p| p.name == *name) {
        return Err(PlyPropertyError::Twice(SplatError::Twice {
            what: "property",
            name: name.to_string(),
        }));
    }
    element.properties.push(PlyProperty {
        name: name.to_string(),
        stored,
    });
    Ok(())
}

/// Indices of the splat's numbers among the vertex properties.
struct PlySplatProperties {
    position: [usize; 3],
    log_scales: [usize; 3],
    rotation: [usize; 4],
    opacity: usize,
    /// Indices of the color coefficients in scene order, `[K][3]`.
    colors: Vec<usize>,
}

impl PlySplatProperties {
    fn from_element(element: &PlyElement) -> Result<PlySplatProperties, SplatError> {
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
        // Files store the coefficients channel by channel.
        let each = found / 3;
        for k in 0..each {
            colors.extend([0, 1, 2].map(|c| place(&format!("f_rest_{}", c * each + k))));
        }
        if !missing.is_empty() {
            let names = missing.join(", ");
            return Err(SplatError::Missing { names });
        }
        Ok(PlySplatProperties {
            position,
            log_scales,
            rotation,
            opacity,
            colors,
        })
    }

    /// Appends a splat; `number` returns the value of a property.
    fn push(&self, scene: &mut SplatScene, number: &dyn Fn(usize) -> f32) {
        scene.positions.extend(self.position.map(number));
        scene.log_scales.extend(self.log_scales.map(number));
        scene.rotations.extend(self.rotation.map(number));
        scene.opacities.push(number(self.opacity));
        scene
            .colors
            .extend(self.colors.iter().map(|&at| number(at)));
    }
}

/// Parses the scene of a file.
///
/// # Errors
/// [`SplatError`]: not a PLY file, unsupported format, missing or invalid properties, or truncated data.
pub(super) fn parse(bytes: &[u8]) -> Result<SplatScene, SplatError> {
    let file = PlyFile::parse(bytes)?;
    let places = PlySplatProperties::from_element(file.vertices())?;
    let mut scene = SplatScene {
        harmonics: places.colors.len() / 3,
        ..SplatScene::default()
    };
    file.read(
        &mut scene,
        |scene, count| reserve(scene, &places, count),
        |scene, number| places.push(scene, number),
    )?;
    Ok(scene)
}

/// True if the vertices are Gaussians, decided by the property `opacity`; otherwise they are
/// points.
///
/// # Errors
/// Same errors as [`parse`].
pub(super) fn has_splats(bytes: &[u8]) -> Result<bool, SplatError> {
    let file = PlyFile::parse(bytes)?;
    Ok(file.vertices().place("opacity").is_some())
}

/// Points and their colors (0 to 1), three numbers each; the default color is gray.
///
/// # Errors
/// Same errors as [`parse`].
pub(super) fn points(bytes: &[u8]) -> Result<(Vec<f32>, Vec<f32>), SplatError> {
    let file = PlyFile::parse(bytes)?;
    let vertices = file.vertices();
    let position = ["x", "y", "z"].map(|name| vertices.place(name));
    let [Some(x), Some(y), Some(z)] = position else {
        let names = "`x`, `y` and `z`".to_string();
        return Err(SplatError::Missing { names });
    };
    let color = ["red", "green", "blue"].map(|name| {
        let at = vertices.place(name)?;
        // Integer colors range from 0 to 255.
        let whole = match vertices.properties[at].stored {
            Some(PlyScalarType::F32 | PlyScalarType::F64) => 1.0,
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

/// A PLY file with a parsed header.
struct PlyFile<'a> {
    header: PlyHeader,
    /// Index of the vertex element.
    vertices: usize,
    data: &'a [u8],
}

impl<'a> PlyFile<'a> {
    fn parse(bytes: &'a [u8]) -> Result<PlyFile<'a>, SplatError> {
        let header = PlyHeader::read(bytes)?;
        let at = header.elements.iter().position(|e| e.name == "vertex");
        let vertices = at.ok_or(SplatError::NoVertices)?;
        header.elements[vertices].stride()?;
        let data = &bytes[header.len..];
        Ok(PlyFile {
            header,
            vertices,
            data,
        })
    }

    fn vertices(&self) -> &PlyElement {
        &self.header.elements[self.vertices]
    }

    /// Calls `room` once with the number of vertices, then `push` with the properties of each
    /// vertex.
    fn read<T>(
        &self,
        to: &mut T,
        room: impl FnOnce(&mut T, usize),
        push: impl FnMut(&mut T, &dyn Fn(usize) -> f32),
    ) -> Result<(), SplatError> {
        let before = &self.header.elements[..self.vertices];
        match self.header.format {
            PlyFormat::Binary => binary(self.data, before, self.vertices(), to, room, push),
            PlyFormat::Ascii => ascii(self, before, to, room, push),
        }
    }
}

/// Reserves memory for `count` Gaussians; the caller has checked the count against the file length.
fn reserve(scene: &mut SplatScene, places: &PlySplatProperties, count: usize) {
    scene.positions.reserve(3 * count);
    scene.log_scales.reserve(3 * count);
    scene.rotations.reserve(4 * count);
    scene.opacities.reserve(count);
    scene.colors.reserve(places.colors.len() * count);
}

fn binary<T>(
    data: &[u8],
    before: &[PlyElement],
    vertices: &PlyElement,
    to: &mut T,
    room: impl FnOnce(&mut T, usize),
    mut push: impl FnMut(&mut T, &dyn Fn(usize) -> f32),
) -> Result<(), SplatError> {
    let mut rest = data;
    let mut taken = |element: &PlyElement| {
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
    // The division is safe: required properties make the vertex size positive.
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
    file: &PlyFile<'_>,
    before: &[PlyElement],
    to: &mut T,
    room: impl FnOnce(&mut T, usize),
    mut push: impl FnMut(&mut T, &dyn Fn(usize) -> f32),
) -> Result<(), SplatError> {
    let (data, vertices) = (file.data, file.vertices());
    let width = vertices.properties.len();
    // Minimum length: one digit and one separator per number, except after the last number.
    let need = (u128::from(vertices.count) * 2 * width as u128).saturating_sub(1);
    let Some(count) = usize::try_from(vertices.count)
        .ok()
        .filter(|_| need <= data.len() as u128)
    else {
        return Err(vertices.truncated(need, data.len()));
    };
    let mut all = lines(data).zip(file.header.lines + 1..);
    let ends = |element: &PlyElement, done: u64| SplatError::Ends {
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
            numbers.push(number.ok_or_else(|| wrong(format!("`{word}` is not a number")))?);
        }
        if numbers.len() != width {
            let found = numbers.len();
            return Err(wrong(format!("found {found} numbers; expected {width}")));
        }
        push(to, &|at| numbers[at]);
    }
    Ok(())
}
