//! Training images with their cameras: read from a folder, or rendered of another scene.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use tercet::{Device, Tensor};
use tercet_models::splat::{SplatCamera, SplatRenderer, SplatScene, SplatView, looked_at, views};

use super::fit::SplatFitArgs;
use crate::error::CliError;

/// File names of view documents (NeRF).
const DOCUMENTS: [&str; 2] = ["transforms.json", "transforms_train.json"];
/// Maximum pixels of an image, checked before its memory is allocated.
const MAX_PIXELS: usize = 1 << 27;

/// An image and its camera.
pub(super) struct PosedImage {
    /// Camera block with the background colour, `[25]`.
    pub(super) camera: Tensor,
    /// `[height, width, 3]`, 0 to 1.
    pub(super) image: Tensor,
}

/// All training images. All images have the same size.
pub(super) struct PosedImageSet {
    pub(super) images: Vec<PosedImage>,
    /// Width and height in pixels.
    pub(super) image: [usize; 2],
    /// The point that the cameras look at, and their distance from it. `None` if all cameras have
    /// parallel view directions.
    pub(super) look_at: Option<([f64; 3], f64)>,
}

impl PosedImageSet {
    pub(super) fn new(args: &SplatFitArgs, device: &Device) -> Result<PosedImageSet, CliError> {
        let background = args.background();
        let (cameras, pictures, image) = match (&args.data, &args.from) {
            (Some(path), _) => read(path, args.shrink, background)?,
            (None, Some(path)) => render_views(path, args, device)?,
            (None, None) => {
                let text = "set --data to a folder of images or --from to a scene";
                return Err(CliError::Usage(text.to_string()));
            }
        };
        let around = looked_at(&cameras);
        let all = cameras.iter().zip(pictures).map(|(camera, picture)| {
            let [width, height] = image;
            Ok(PosedImage {
                camera: tensor(camera.block(background))?,
                image: tensor(Tensor::from_slice(&[height, width, 3], &picture))?,
            })
        });
        Ok(PosedImageSet {
            images: all.collect::<Result<_, CliError>>()?,
            image,
            look_at: around,
        })
    }
}

fn tensor(made: Result<Tensor, tercet::TensorError>) -> Result<Tensor, CliError> {
    made.map_err(|source| CliError::Tensor {
        what: "cannot create a tensor for an image or camera".to_string(),
        source,
    })
}

type DecodedViews = (Vec<SplatCamera>, Vec<Vec<f32>>, [usize; 2]);

/// Renders images of another scene from cameras around it.
fn render_views(
    path: &Path,
    args: &SplatFitArgs,
    device: &Device,
) -> Result<DecodedViews, CliError> {
    let what = format!("cannot render {}", path.display());
    let scene = SplatScene::open(path)
        .map_err(CliError::model(format!("cannot read {}", path.display())))?;
    if scene.is_empty() {
        return Err(CliError::Fit(format!(
            "{} has no Gaussians",
            path.display()
        )));
    }
    let image = args.size;
    let cameras = SplatCamera::around(&scene, image, 50.0, args.views);
    let cameras = cameras.map_err(CliError::model(what.clone()))?;
    let renderer = SplatRenderer::new(device, &scene, image);
    let mut renderer = renderer.map_err(CliError::model(what.clone()))?;
    let mut pictures = Vec::with_capacity(cameras.len());
    for camera in &cameras {
        let frame = renderer.draw(camera, args.background());
        let frame = frame.map_err(CliError::model(what.clone()))?;
        pictures.push(frame.colors.iter().map(|x| x.clamp(0.0, 1.0)).collect());
    }
    Ok((cameras, pictures, image))
}

/// Reads the images of a folder or of a view document.
fn read(path: &Path, shrink: usize, background: [f32; 3]) -> Result<DecodedViews, CliError> {
    let document = match path.is_dir() {
        true => DOCUMENTS
            .map(|name| path.join(name))
            .into_iter()
            .find(|p| p.is_file()),
        false => Some(path.to_path_buf()),
    };
    let Some(document) = document else {
        let names = DOCUMENTS.join(" or ");
        return Err(CliError::Fit(format!("{} has no {names}", path.display())));
    };
    let text = std::fs::read_to_string(&document).map_err(|source| CliError::File {
        path: document.clone(),
        source,
    })?;
    let folder = document.parent().unwrap_or(Path::new(""));
    let what = format!("cannot read {}", document.display());
    let views = views(&text, folder).map_err(CliError::model(what.clone()))?;
    if views.is_empty() {
        return Err(CliError::Fit(format!(
            "{} has no views",
            document.display()
        )));
    }
    let (mut cameras, mut pictures) = (Vec::new(), Vec::new());
    let mut size = None;
    for SplatView { image: path, .. } in &views {
        let ([width, height], colors) = load_png(path, background)?;
        let own = [width, height];
        let expected = *size.get_or_insert(own);
        if own != expected {
            let reason = format!(
                "it has {width}x{height} pixels, previous images have {}x{}",
                expected[0], expected[1]
            );
            return Err(CliError::Picture {
                path: path.clone(),
                reason,
            });
        }
        pictures.push(downsample(&colors, own, shrink));
    }
    let whole = size.unwrap_or_default();
    let image = whole.map(|n| n / shrink);
    if image.contains(&0) {
        let text = format!(
            "--shrink {shrink} is too large for images of {}x{} pixels",
            whole[0], whole[1]
        );
        return Err(CliError::Usage(text));
    }
    for view in &views {
        let camera = view.camera(whole).map_err(CliError::model(what.clone()))?;
        // Rows and columns that do not fill a downscaled pixel are cropped.
        let used = image.map(|n| n * shrink);
        let used = SplatCamera {
            image: used,
            ..camera
        };
        cameras.push(used.resized(image));
    }
    Ok((cameras, pictures, image))
}

/// Downscales by averaging squares of `by` x `by` pixels.
fn downsample(colors: &[f32], [width, height]: [usize; 2], by: usize) -> Vec<f32> {
    if by == 1 {
        return colors.to_vec();
    }
    let part = 1.0 / (by * by) as f32;
    let mut small = Vec::with_capacity(colors.len() / (by * by));
    for (y, x) in (0..height / by).flat_map(|y| (0..width / by).map(move |x| (y, x))) {
        for c in 0..3 {
            let at = |i: usize| ((y * by + i / by) * width + x * by + i % by) * 3 + c;
            let sum: f32 = (0..by * by).map(|i| colors[at(i)]).sum();
            small.push(sum * part);
        }
    }
    small
}

/// Colours of a PNG file, 0 to 1, composited over the background.
fn load_png(path: &Path, background: [f32; 3]) -> Result<([usize; 2], Vec<f32>), CliError> {
    let bad = |reason: String| CliError::Picture {
        path: path.to_path_buf(),
        reason,
    };
    let not_png = |e: png::DecodingError| match e {
        png::DecodingError::IoError(e) => bad(format!("it is truncated or not a PNG file ({e})")),
        e => bad(format!("it is not a readable PNG file ({e})")),
    };
    let file = File::open(path).map_err(|source| CliError::File {
        path: path.to_path_buf(),
        source,
    })?;
    let mut decoder = png::Decoder::new(BufReader::new(file));
    decoder.set_transformations(png::Transformations::normalize_to_color8());
    let mut reader = decoder.read_info().map_err(not_png)?;
    let size = [reader.info().width, reader.info().height].map(|n| n as usize);
    if size[0].saturating_mul(size[1]) > MAX_PIXELS {
        return Err(bad(format!("{}x{} pixels are too many", size[0], size[1])));
    }
    let len = reader.output_buffer_size();
    let len = len.ok_or_else(|| bad("it is too large".to_string()))?;
    let mut bytes = vec![0; len];
    let info = reader.next_frame(&mut bytes).map_err(not_png)?;
    let channels = info.color_type.samples();
    let pixels = bytes[..info.buffer_size()].chunks_exact(channels);
    let part = |byte: u8| f32::from(byte) / 255.0;
    let mut colors = Vec::with_capacity(3 * size[0] * size[1]);
    for pixel in pixels {
        let (color, alpha) = match *pixel {
            [gray] => ([gray; 3], 255),
            [gray, alpha] => ([gray; 3], alpha),
            [r, g, b] => ([r, g, b], 255),
            [r, g, b, alpha] => ([r, g, b], alpha),
            _ => return Err(bad(format!("it has {channels} channels"))),
        };
        let alpha = part(alpha);
        for (own, behind) in color.into_iter().zip(background) {
            colors.push(part(own) * alpha + behind * (1.0 - alpha));
        }
    }
    Ok((size, colors))
}
