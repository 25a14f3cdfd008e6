//! Switches of devices by flag and environment, in `explain`, `devices` and every other command.

use crate::common::{GRAPH, Scratch, bad, good, tercet};

/// Exit code, standard output and standard error of a command with these variables.
fn with(variables: &[(&str, &str)], args: &[&str]) -> (Option<i32>, String, String) {
    let mut command = tercet(args);
    command.envs(variables.iter().copied());
    let output = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

#[test]
fn explain_and_devices_show_the_switches_in_effect() {
    let scratch = Scratch::new("switches");
    let graph = scratch.file("g.tercet", GRAPH);
    let explain = ["explain", &graph, "--bound", "n=8", "--device", "cpu"];
    let (code, out, err) = with(&[], &explain);
    assert!(code == Some(0) && !out.contains("switches"), "{out}{err}");
    let flags = ["--without", "avx512,coop", "--force", "simd=portable"];
    let (code, out, err) = with(&[], &[&explain[..], &flags].concat());
    assert_eq!(code, Some(0), "{err}");
    let line = "switches        without coop, avx512; force simd=portable (simd portable)";
    assert!(out.contains(line), "{out}");
    // The flags go before the environment, and features add up.
    let variables = [("TERCET_WITHOUT", "chains"), ("TERCET_FORCE", "simd=avx2")];
    let (code, out, err) = with(&variables, &[&explain[..], &flags].concat());
    assert_eq!(code, Some(0), "{err}");
    assert!(
        out.contains("without coop, chains, avx512; force simd=portable"),
        "{out}"
    );
    let (code, out, _) = with(&[("TERCET_FORCE", "simd=portable")], &explain);
    assert!(code == Some(0) && out.contains("(simd portable)"), "{out}");
    let (_, out, _) = with(&[("TERCET_WITHOUT", "coop")], &["devices"]);
    assert!(out.contains("switches     without coop"), "{out}");
    let out = good(&["devices", "--variants"]).out;
    for part in ["simd: avx512, avxvnni, avx2", "coop, coop_blocks, chains"] {
        assert!(out.contains(part), "{part} is not in {out}");
    }
}

#[test]
fn switches_for_diagnosis_come_from_flag_and_environment() {
    let scratch = Scratch::new("debug");
    let graph = scratch.file("g.tercet", GRAPH);
    let explain = ["explain", &graph, "--bound", "n=8", "--device", "cpu"];
    let variables = [("TERCET_DEBUG", "barriers=none,upload")];
    let flags = ["--debug", "record,barriers=all"];
    let (code, out, err) = with(&variables, &[&explain[..], &flags].concat());
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("debug barriers=all, record, upload"), "{out}");
    let (code, _, err) = with(&[("TERCET_DEBUG", "barriers")], &explain);
    assert!(code == Some(2) && err.contains("barriers=none"), "{err}");
    for (list, part) in [
        ("uploads", "no switch `uploads` for diagnosis"),
        ("barriers=all,barriers=none", "contradict each other"),
    ] {
        bad(&[&explain[..], &["--debug", list]].concat(), 2, &[part]);
    }
}

#[test]
fn switches_that_do_not_exist_are_refused_with_what_there_is() {
    let scratch = Scratch::new("no-switch");
    let graph = scratch.file("g.tercet", GRAPH);
    let explain = ["explain", &graph, "--bound", "n=8", "--device", "cpu"];
    let of = |flags: &[&str], parts: &[&str]| bad(&[&explain[..], flags].concat(), 2, parts);
    of(&["--without", "matrices"], &["`matrices`", "coop, "]);
    of(
        &["--force", "simd"],
        &["`simd` names no kernel variant", "FAMILY=VARIANT"],
    );
    of(
        &["--force", "simd=sse2"],
        &["no variant `sse2`", "dotprod, neon, portable"],
    );
    of(
        &["--force", "attention=tiles"],
        &["cpu has no family `attention`", "simd"],
    );
    of(
        &["--without", "avx2", "--force", "simd=avx2"],
        &["another switch"],
    );
    let both = ["--without", "simd=avx2", "--force", "simd=avx2"];
    of(&both, &["contradict each other"]);
    for variables in [
        [("TERCET_WITHOUT", "nothing")],
        [("TERCET_FORCE", "nothing")],
    ] {
        for args in [&explain[..], &["devices"]] {
            let (code, _, err) = with(&variables, args);
            assert!(
                code == Some(2) && err.contains("`nothing`"),
                "{code:?} {err}"
            );
        }
    }
}
