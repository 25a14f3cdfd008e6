//! The facts about an ELF program that packages need.

/// The marks of symbols that need a version of glibc.
const GLIBC: &[u8] = b"GLIBC_2.";
/// The type of the program header that names the loader.
const PT_INTERP: u32 = 3;

/// The path of the loader of a 64-bit little-endian ELF program; `None` for static programs and other files.
pub(super) fn loader(program: &[u8]) -> Option<String> {
    let number = |at: usize, len: usize| -> Option<usize> {
        let bytes = program.get(at..at.checked_add(len)?)?;
        let value = bytes
            .iter()
            .rev()
            .fold(0_u64, |value, byte| value << 8 | u64::from(*byte));
        usize::try_from(value).ok()
    };
    if !program.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let (table, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
    for index in 0..count {
        let header = table.checked_add(index * size)?;
        if number(header, 4)? != PT_INTERP as usize {
            continue;
        }
        let (start, len) = (number(header + 8, 8)?, number(header + 32, 8)?);
        let path = program.get(start..start.checked_add(len)?)?;
        let path = path.split(|byte| *byte == 0).next()?;
        return Some(String::from_utf8_lossy(path).into_owned());
    }
    None
}

/// The newest version of glibc whose symbols a program uses, such as (2, 28).
pub(super) fn glibc(program: &[u8]) -> Option<(u32, u32)> {
    let starts = program.windows(GLIBC.len()).enumerate();
    let starts = starts.filter(|(_, window)| *window == GLIBC);
    let minors = starts.filter_map(|(at, _)| {
        let rest = &program[at + GLIBC.len()..];
        let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        // A version ends with the string in the table of names, or continues with a patch number.
        let is_end = matches!(rest.get(digits), Some(0 | b'.'));
        let text = std::str::from_utf8(&rest[..digits]).ok()?;
        text.parse().ok().filter(|_| is_end)
    });
    minors.max().map(|minor| (2, minor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_counts() {
        let text = b"x\0GLIBC_2.4\0GLIBC_2.17\0GLIBC_2.2.5\0GLIBC_2.99x\0GLIBC_PRIVATE\0";
        assert_eq!(glibc(text), Some((2, 17)));
        assert_eq!(glibc(b"no symbols"), None);
    }

    #[test]
    fn damaged_headers_have_no_loader() {
        let mut program = vec![0; 64];
        program[..6].copy_from_slice(b"\x7fELF\x02\x01");
        assert_eq!(loader(&program), None);
        program[32..40].fill(0xff);
        program[56] = 3;
        program[54] = 56;
        assert_eq!(loader(&program), None);
        assert_eq!(loader(b"#!/bin/sh\n"), None);
    }

    #[test]
    #[cfg(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64"))]
    fn this_program_has_a_loader_and_needs_glibc() {
        let program = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let loader = loader(&program).unwrap();
        assert!(std::path::Path::new(&loader).exists(), "{loader}");
        assert!(glibc(&program) >= Some((2, 17)));
    }
}
