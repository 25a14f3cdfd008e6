//! Tests of autotuning tables and their text.

use tercet_ir::{DType, Scheme, SwitchError};
use tercet_plan::internals::tuning::{FIRST_HEADER, HEADER};
use tercet_plan::{GemmProblem, TuningEntry, TuningKey, TuningTable, WeightLayout};

fn problem(dtype: DType, size: usize) -> GemmProblem {
    GemmProblem {
        dtype,
        b_transposed: false,
        m: size,
        n: size,
        k: size,
    }
}

fn entry(dtype: DType, size: usize, variant: &str) -> TuningEntry {
    TuningEntry {
        key: problem(dtype, size).key(),
        variant: variant.to_string(),
    }
}

#[test]
fn a_table_is_found_by_the_nearest_size_and_survives_its_text() {
    let table = TuningTable::new(vec![
        entry(DType::F16, 1024, "small"),
        entry(DType::F16, 4096, "large"),
        entry(DType::BF16, 1024, "other"),
        TuningEntry {
            key: TuningKey::rows(
                DType::F32,
                WeightLayout::Packed(Scheme::Q4K),
                [8, 14336, 4096],
            ),
            variant: "few".to_string(),
        },
    ]);
    let find = |dtype, size| table.find(|| problem(dtype, size).key());
    assert_eq!(find(DType::F16, 1100), Some("small"));
    assert_eq!(find(DType::F16, 2900), Some("large"));
    assert_eq!(find(DType::BF16, 512), Some("other"));
    assert_eq!(find(DType::F16, 500), None);
    assert_eq!(find(DType::F32, 1024), None);
    let rows = |scheme| {
        table.find(|| TuningKey::rows(DType::F32, WeightLayout::Packed(scheme), [5, 8192, 4096]))
    };
    assert_eq!(rows(Scheme::Q4K), Some("few"));
    assert_eq!(rows(Scheme::Q6K), None);
    assert_eq!(table.to_string().parse(), Ok(table));
}

#[test]
fn switches_survive_the_text_and_unknown_ones_are_named() {
    let text = format!(
        "{HEADER}\nwithout coop,conv=rows\nforce attention=tiles\ndebug barriers=all,record\n"
    );
    let table: TuningTable = text.parse().unwrap();
    assert!(table.switches().is_forbidden("conv", "rows"));
    assert_eq!(table.switches().forced("attention"), Some("tiles"));
    assert!(table.switches().debug().record);
    assert_eq!(table.to_string(), text);
    let e = format!("{HEADER}\nwithout matrices\n").parse::<TuningTable>();
    let e = e.unwrap_err();
    assert_eq!(e.line, 2);
    assert!(matches!(e.switch, Some(SwitchError::UnknownFeature { .. })));
}

#[test]
fn tables_of_the_first_version_are_read() {
    let text = "tercet tuning 1\nf16 nt 512 4096 4096 128x128x32/64x64\n";
    let table: TuningTable = text.parse().unwrap();
    let problem = GemmProblem {
        b_transposed: true,
        m: 512,
        ..problem(DType::F16, 4096)
    };
    assert_eq!(table.find(|| problem.key()), Some("128x128x32/64x64"));
    assert!(table.to_string().starts_with(HEADER));
}

#[test]
fn a_damaged_table_is_refused_with_its_line() {
    assert_eq!("".parse::<TuningTable>().unwrap_err().line, 1);
    assert_eq!(
        "tercet tuning 3\n".parse::<TuningTable>().unwrap_err().line,
        1
    );
    let damaged = [
        (HEADER, "matmul/f16/nn 1x2x3"),
        (HEADER, "matmul/f16/nn 1x-2x3 w"),
        (HEADER, "matmul/f16/nn 1 2 3 w"),
        (FIRST_HEADER, "f16 nn 1 2 3"),
        (FIRST_HEADER, "f16 nx 1 2 3 w"),
        (FIRST_HEADER, "f99 nn 1 2 3 w"),
        (FIRST_HEADER, "f16 nn 1 -2 3 w"),
    ];
    for (header, damaged) in damaged {
        let text = format!("{header}\n\n{damaged}\n");
        assert_eq!(
            text.parse::<TuningTable>().unwrap_err().line,
            3,
            "{damaged}"
        );
    }
}
