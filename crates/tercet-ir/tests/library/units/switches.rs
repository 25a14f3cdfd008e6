//! Switches of a device.

use tercet_ir::{DeviceSwitches, SwitchError, VariantFamily};

#[test]
fn unknown_and_contradictory_switches_are_refused_with_what_there_is() {
    let refused = |without, force| DeviceSwitches::parse(without, force).unwrap_err();
    let unknown = refused("coop,matrix", "").to_string();
    assert!(unknown.contains("`matrix`") && unknown.contains("chains, subgroups"));
    for force in ["attention", "=tiles", "attention="] {
        assert!(matches!(refused("", force), SwitchError::Form { .. }));
    }
    let two = refused("", "conv=rows,conv=windows").to_string();
    assert!(two.contains("`conv=rows` and `conv=windows`"), "{two}");
    let both = refused("conv=rows", "conv=rows").to_string();
    assert!(both.contains("--without conv=rows"), "{both}");
    assert!(DeviceSwitches::parse(" , coop,,coop ", "a=b,a=b").is_ok());
}

#[test]
fn a_device_refuses_families_and_variants_that_it_does_not_have() {
    let families = [VariantFamily {
        name: "simd",
        variants: vec!["avx2".to_string(), "portable".to_string()],
    }];
    let check = |text| {
        let switches = DeviceSwitches::parse("", text).unwrap();
        switches.check("cpu", &families)
    };
    assert_eq!(check("simd=avx2"), Ok(()));
    let family = check("attention=tiles").unwrap_err().to_string();
    let text =
        "`attention=tiles`: cpu has no family `attention` of kernel variants; there are: simd";
    assert_eq!(family, text);
    let variant = check("simd=neon").unwrap_err().to_string();
    assert_eq!(
        variant,
        "`simd=neon`: `simd` has no variant `neon`; there are: avx2, portable"
    );
}

#[test]
fn the_nearer_switches_win_and_features_add_up() {
    let near = DeviceSwitches::parse("coop,conv=rows", "attention=tiles").unwrap();
    let far = DeviceSwitches::parse(
        "chains,attention=tiles",
        "attention=lanes,conv=rows,rows=row",
    );
    let all = near.over(&far.unwrap());
    let text = "without coop, chains, conv=rows; force attention=tiles, rows=row";
    assert_eq!(all.to_string(), text);
}
