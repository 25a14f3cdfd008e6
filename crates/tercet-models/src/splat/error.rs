//! What can be wrong with a scene of Gaussians, a camera, or an image of them.

use tercet::{CompileError, OpError, RunError, TensorError};

use crate::mmap::FileError;

/// Why a scene or a camera was refused, or an image could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(
    missing_docs,
    reason = "the fields are named by the messages above them"
)]
pub enum SplatError {
    /// The file could not be opened.
    #[error(transparent)]
    File(#[from] FileError),
    /// The file does not begin as a PLY file does.
    #[error("the file does not begin with a line `ply`; it is not a PLY file")]
    NotPly,
    /// The header has no end within the file or its limit.
    #[error(
        "no `end_header` in the first {searched} bytes; the file is incomplete or not a PLY file"
    )]
    NoEnd { searched: usize },
    /// A line of the header that the format does not have.
    #[error("line {line} of the header: {reason}")]
    Header { line: usize, reason: String },
    /// A way of storing numbers that is not read.
    #[error(
        "format `{found}` is not read; convert the file to binary_little_endian 1.0 or ascii 1.0"
    )]
    Format { found: String },
    /// A list where numbers of one size are needed.
    #[error(
        "element `{element}` has the list `{property}`; splats and what stands before them must be \
         numbers"
    )]
    List { element: String, property: String },
    /// The file has no splats.
    #[error("the file has no element `vertex`; 3-D Gaussians are stored as vertices")]
    NoVertices,
    /// Properties that a splat needs.
    #[error("the vertices have no {names}; the file is no scene of 3-D Gaussians")]
    Missing { names: String },
    /// A property or element twice.
    #[error("{what} `{name}` is declared twice")]
    Twice { what: &'static str, name: String },
    /// Not as many spherical harmonics as a degree has.
    #[error("{found} properties f_rest_*; 0, 9, 24 and 45 are those of degrees 0 to 3")]
    Harmonics { found: usize },
    /// The file ends before its last splat.
    #[error(
        "{count} of `{element}` need {need} bytes and {found} are left; the download may be incomplete"
    )]
    Truncated {
        element: String,
        count: u64,
        need: u128,
        found: usize,
    },
    /// A file of text has fewer lines than its header says.
    #[error(
        "the file ends before the last {missing} of `{element}`; the download may be incomplete"
    )]
    Ends { element: String, missing: u64 },
    /// A line of numbers that is too short, too long, or no line of numbers.
    #[error("line {line}: {reason}")]
    Row { line: usize, reason: String },
    /// A camera file that is not what it should be.
    #[error("the camera: {reason}")]
    Camera { reason: String },
    /// A document of views that is not what it should be.
    #[error("the views: {reason}")]
    Views { reason: String },
    /// The graph could not be built.
    #[error("the scene does not make a graph")]
    Graph(#[from] OpError),
    /// The numbers do not make a tensor.
    #[error("the scene does not make tensors")]
    Tensor(#[from] TensorError),
    /// The device cannot draw the scene.
    #[error("the scene cannot be compiled for this device")]
    Compile(#[from] CompileError),
    /// A frame failed.
    #[error("the frame could not be drawn")]
    Run(#[from] RunError),
}
