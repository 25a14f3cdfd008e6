use tercet_networks::Image;
use tercet_networks::image::ResampleFilter;

fn gray(width: usize, height: usize, values: &[u8]) -> Image {
    let rgb = values.iter().flat_map(|x| [*x; 3]).collect();
    Image::from_rgb(width, height, rgb).unwrap()
}

fn values(picture: &Image) -> Vec<u8> {
    picture.rgb().iter().step_by(3).copied().collect()
}

#[test]
fn halves_and_doubles() {
    let line = gray(4, 1, &[0, 100, 200, 100]);
    let filter = ResampleFilter::Box;
    assert_eq!(values(&line.resized(2, 1, filter).unwrap()), [50, 150]);
    let two = gray(1, 2, &[0, 200]);
    let four = two.resized(1, 4, ResampleFilter::Bilinear).unwrap();
    assert_eq!(values(&four), [0, 50, 150, 200]);
    assert_eq!(line.resized(4, 1, ResampleFilter::Lanczos).unwrap(), line);
}

#[test]
fn crops_have_zeros_around_what_is_smaller() {
    let four = gray(2, 2, &[1, 2, 3, 4]);
    let around = four.center_cropped(5, 1).unwrap();
    assert_eq!(values(&around), [0, 0, 1, 2, 0]);
    assert_eq!(values(&four.center_cropped(1, 1).unwrap()), [1]);
    let odd = gray(3, 1, &[1, 2, 3]);
    assert_eq!(values(&odd.center_cropped(2, 1).unwrap()), [1, 2]);
}
