//! The committed header is what cbindgen makes of the sources. `TRUNKLINE_WRITE_HEADER=1` writes it.

use std::fs;
use std::path::Path;

#[test]
fn the_header_is_what_the_sources_say() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config =
        cbindgen::Config::from_file(here.join("cbindgen.toml")).expect("the configuration is readable");
    let mut made = Vec::new();
    cbindgen::Builder::new()
        .with_config(config)
        .with_src(here.join("src/types.rs"))
        .with_src(here.join("src/lib.rs"))
        .generate()
        .expect("the sources can be described in C")
        .write(&mut made);
    let made = String::from_utf8(made).expect("C is ASCII");
    let path = here.join("../../python/trunkline/include/trunkline.h");
    if std::env::var_os("TRUNKLINE_WRITE_HEADER").is_some() {
        fs::write(&path, &made).expect("the header can be written");
    }
    let committed = fs::read_to_string(&path).expect("the header is there");
    assert!(
        made == committed,
        "the header is old: TRUNKLINE_WRITE_HEADER=1 cargo test -p trunkline-capi --test header"
    );
}
