use std::path::{Path, PathBuf};

use tercet_serve::internals::adapter_path;

#[test]
fn adapters_are_read_from_the_folder_only() {
    let folder = Path::new("/adapters");
    let path = |text| adapter_path(Some(folder), text).map_err(|e| e.status.as_u16());
    assert_eq!(path("a/b"), Ok(PathBuf::from("/adapters/a/b")));
    assert_eq!(path("/adapters/a"), Ok(PathBuf::from("/adapters/a")));
    for outside in ["", "..", "a/../..", "/etc/passwd", "../adapters/a"] {
        assert_eq!(path(outside), Err(400), "{outside}");
    }
    assert_eq!(
        adapter_path(None, "a").map_err(|e| e.status.as_u16()),
        Err(403)
    );
}
