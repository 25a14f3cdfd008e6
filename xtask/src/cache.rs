//! The cache folder for downloaded files and tools.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::env;
use crate::error::XtaskError;

/// The cache folder: `TERCET_CACHE_DIR`, else `$XDG_CACHE_HOME/tercet`, else `~/.cache/tercet`.
///
/// A relative path is resolved against the current folder, because the tests that receive it run in
/// other folders.
pub(crate) fn dir() -> Result<PathBuf, XtaskError> {
    let path = resolve(|name| std::env::var_os(name)).ok_or(XtaskError::NoCacheDir)?;
    std::path::absolute(&path).map_err(crate::error::file("resolve", &path))
}

/// An empty variable counts as unset, as the XDG specification requires.
fn resolve(var: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let folder = |name: &str| {
        var(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    folder(env::CACHE_DIR)
        .or_else(|| folder("XDG_CACHE_HOME").map(|base| base.join("tercet")))
        .or_else(|| folder("HOME").map(|home| home.join(".cache").join("tercet")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(vars: &[(&str, &str)], expected: Option<&str>) {
        let var = |name: &str| {
            vars.iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| OsString::from(value))
        };
        assert_eq!(resolve(var), expected.map(PathBuf::from), "{vars:?}");
    }

    #[test]
    fn the_first_variable_that_is_set_wins() {
        check(&[("HOME", "/h")], Some("/h/.cache/tercet"));
        check(
            &[("HOME", "/h"), ("XDG_CACHE_HOME", "/x")],
            Some("/x/tercet"),
        );
        check(
            &[("XDG_CACHE_HOME", "/x"), ("TERCET_CACHE_DIR", "/t")],
            Some("/t"),
        );
        check(
            &[
                ("HOME", "/h"),
                ("XDG_CACHE_HOME", ""),
                ("TERCET_CACHE_DIR", ""),
            ],
            Some("/h/.cache/tercet"),
        );
        check(&[("HOME", "")], None);
        check(&[], None);
    }
}
