//! Errors of Gaussian scenes, cameras and rendering.

use tercet::{CompileError, OpError, RunError, TensorError};

use tercet_files::FileError;

/// Error of a Gaussian scene, a camera or the rendering of an image.
///
/// ```
/// use tercet_splat::{SplatError, SplatScene};
/// let error = SplatScene::parse(b"GLB\nend_header\n").unwrap_err();
/// assert!(matches!(error, SplatError::NotPly));
/// ```
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
    /// The file does not start with the PLY signature.
    #[error("the file does not begin with a line `ply`; it is not a PLY file")]
    NotPly,
    /// The header has no end within the file or within the size limit.
    #[error(
        "no `end_header` in the first {searched} bytes; the file is incomplete or not a PLY file"
    )]
    NoEnd { searched: usize },
    /// A header line is not valid PLY.
    #[error("line {line} of the header: {reason}")]
    Header { line: usize, reason: String },
    /// The PLY format variant is not supported.
    #[error(
        "format `{found}` is not supported; convert the file to binary_little_endian 1.0 or ascii 1.0"
    )]
    Format { found: String },
    /// A list property occurs where fixed-size numbers are required.
    #[error(
        "element `{element}` has the list `{property}`; splats and elements before them must be \
         numbers"
    )]
    List { element: String, property: String },
    /// The file has no vertices.
    #[error("the file has no element `vertex`; 3D Gaussians are stored as vertices")]
    NoVertices,
    /// Required splat properties are missing.
    #[error("the vertices have no {names}; the file is not a scene of 3D Gaussians")]
    Missing { names: String },
    /// A property or element is declared twice.
    #[error("{what} `{name}` is declared twice")]
    Twice { what: &'static str, name: String },
    /// The number of spherical harmonics matches no degree.
    #[error("{found} properties f_rest_*; expected 0, 9, 24 or 45 (degrees 0 to 3)")]
    Harmonics { found: usize },
    /// The binary data ends before the last splat.
    #[error(
        "{count} of `{element}` need {need} bytes and {found} are left; the download may be incomplete"
    )]
    Truncated {
        element: String,
        count: u64,
        need: u128,
        found: usize,
    },
    /// A text file has fewer lines than its header declares.
    #[error(
        "the file ends before the last {missing} of `{element}`; the download may be incomplete"
    )]
    Ends { element: String, missing: u64 },
    /// A data line has too few or too many values, or values that are not numbers.
    #[error("line {line}: {reason}")]
    Row { line: usize, reason: String },
    /// A camera file is invalid.
    #[error("the camera: {reason}")]
    Camera { reason: String },
    /// A document of views is invalid.
    #[error("the views: {reason}")]
    Views { reason: String },
    /// The graph could not be built.
    #[error("cannot build the graph of the scene")]
    Graph(#[from] OpError),
    /// The numbers do not match the tensor shapes.
    #[error("cannot build the tensors of the scene")]
    Tensor(#[from] TensorError),
    /// The scene cannot be compiled for the device.
    #[error("the scene cannot be compiled for this device")]
    Compile(#[from] CompileError),
    /// Rendering of a frame failed.
    #[error("the frame could not be rendered")]
    Run(#[from] RunError),
}
