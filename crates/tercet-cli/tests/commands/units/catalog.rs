use std::path::Path;

use tercet_cli::internals::{ModelList, is_later_part};

#[test]
fn later_parts_of_a_file_are_no_models() {
    assert!(is_later_part("model-00002-of-00003"));
    for stem in ["model-00001-of-00003", "model", "two-of-three", "a-2-of-3"] {
        assert!(!is_later_part(stem), "{stem}");
    }
}

#[test]
fn a_list_names_its_wrong_keys() {
    let list: Result<ModelList, _> = toml::from_str(
        "memory = \"8GiB\"\n[models.a]\npath = \"a.gguf\"\ncontext = 512\nadapters = { x = \"x\" }\n",
    );
    let list = list.unwrap();
    assert_eq!(list.models["a"].context, Some(512));
    assert_eq!(list.models["a"].adapters["x"], Path::new("x"));
    for (text, named) in [
        ("[models.a]\npath = \"a\"\ncontxt = 1\n", "contxt"),
        ("memry = \"1\"\n", "memry"),
        ("[models.a]\ncontext = 1\n", "path"),
    ] {
        let error = toml::from_str::<ModelList>(text).err().unwrap().to_string();
        assert!(error.contains(named), "{error}");
    }
}
