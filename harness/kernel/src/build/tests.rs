use super::*;

#[test]
fn the_first_error_is_shown() {
    let log = "  CC      a.o\nb.c:1:2: error: no\nmake: *** [x] Error 1\n";
    assert!(complaints(log).starts_with("    b.c:1:2: error: no"));
    assert_eq!(complaints("only this\n"), "    only this");
}

#[test]
fn warnings_are_errors_where_building_is_the_test() {
    let of = |what: &str| -> Kernel {
        let text = format!("tree = 'series'\nfragments = ['common']\n{what}\n");
        toml::from_str(&text).unwrap()
    };
    let said = |kernel: &Kernel| arguments("-j2", kernel).join(" ");
    let objects = of("targets = ['a.o', 'b/']");
    assert!(objects.is_built_only());
    assert_eq!(said(&objects), "-j2 --keep-going W=1e a.o b/");
    let modules = of("modules = true");
    assert!(!modules.is_built_only());
    assert!(said(&modules).contains(" CFLAGS_MODULE=-Werror "));
    assert!(said(&modules).ends_with(" bzImage modules headers"));
    assert_eq!(said(&of("")), "-j2 bzImage modules headers");
    let foreign = of("arch = 'arm64'");
    assert_eq!(said(&foreign), "-j2 Image modules headers");
}

/// Makes kernels with these names in one folder.
fn kernels<const N: usize>(names: [&str; N]) -> (tempfile::TempDir, [Built; N]) {
    let dir = tempfile::tempdir().unwrap();
    let built = names.map(|name| Built {
        dir: dir.path().join(name),
    });
    (dir, built)
}

fn write(kernel: &Built, path: &str, text: &str) {
    let path = kernel.dir.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

#[test]
fn a_kernel_begins_with_the_objects_of_another() {
    let (_dir, [plain, other]) = kernels(["plain", "other"]);
    let models = [plain.clone()];
    let command = format!("gcc -I{0}/tools {0} {0}-x", plain.dir.display());
    write(&plain, "tools/objtool/.a.o.cmd", &command);
    write(&plain, "ko/a.ko", "");
    // An incomplete seed is not used.
    begin_with(&models, &other).unwrap();
    assert!(!other.dir.exists());
    write(&plain, MARK, "");
    begin_with(&models, &other).unwrap();
    let read = |path: &str| fs::read_to_string(other.dir.join(path)).unwrap();
    let renamed = format!(
        "gcc -I{1}/tools {1} {0}-x",
        plain.dir.display(),
        other.dir.display()
    );
    assert_eq!(read("tools/objtool/.a.o.cmd"), renamed);
    assert!(!other.dir.join("ko").exists() && !other.dir.join(MARK).exists());
    // An existing kernel is left alone.
    write(&plain, ".config", "");
    write(&other, ".config", "mine");
    begin_with(&models, &other).unwrap();
    assert_eq!(read(".config"), "mine");
}

#[test]
fn the_first_model_that_is_there_is_taken() {
    let (_dir, [rdma, plain, other]) = kernels(["rdma", "plain", "other"]);
    let models = [rdma.clone(), plain.clone()];
    for model in &models {
        write(model, "tools/of", &model.dir.display().to_string());
    }
    let of = || fs::read_to_string(other.dir.join("tools/of")).unwrap();
    write(&plain, MARK, "");
    begin_with(&models, &other).unwrap();
    assert_eq!(of(), plain.dir.display().to_string());
    fs::remove_dir_all(&other.dir).unwrap();
    write(&rdma, MARK, "");
    begin_with(&models, &other).unwrap();
    assert_eq!(of(), rdma.dir.display().to_string());
}

#[test]
fn headers_are_those_of_the_first_kernel_that_is_whole() {
    let (_dir, [broken, whole, other]) = kernels(["broken", "whole", "other"]);
    write(&broken, "usr/include/linux/a.h", "broken");
    write(&whole, "usr/include/linux/a.h", "whole");
    write(&other, "usr/include.partial/linux/b.h", "interrupted");
    let siblings = [other.clone(), broken, whole.clone()];
    take_headers(&siblings, &other).unwrap();
    assert!(!other.dir.join(HEADERS).exists());
    write(&whole, MARK, "");
    take_headers(&siblings, &other).unwrap();
    let of = |kernel: &Built| kernel.dir.join(HEADERS).join("linux/a.h");
    assert_eq!(fs::read_to_string(of(&other)).unwrap(), "whole");
    assert!(!other.dir.join(HEADERS).join("linux/b.h").exists());
    // Kbuild uses their age to see whether they are up to date.
    let age = |kernel| fs::metadata(of(kernel)).unwrap().modified().unwrap();
    assert_eq!(age(&other), age(&whole));
    // Existing headers are left alone.
    write(&other, "usr/include/linux/a.h", "mine");
    take_headers(&siblings, &other).unwrap();
    assert_eq!(fs::read_to_string(of(&other)).unwrap(), "mine");
}

/// Makes a kernel look as if it was built, with this in its image and its module.
fn write_kernel(kernel: &Built, defect: &str) {
    for list in [".config", "System.map", "modules.builtin"] {
        write(kernel, list, "");
    }
    write(kernel, "modules.builtin.modinfo", "");
    write(kernel, "modules.order", "drivers/a.o\n");
    write(kernel, "arch/x86/boot/bzImage", defect);
    write(kernel, "drivers/a.ko", defect);
}

#[test]
fn a_kernel_that_is_set_aside_stays_as_it_is() {
    let (_dir, [kernel, aside]) = kernels(["kernel", "aside"]);
    write(&kernel, "selftests/mm/test", "");
    for defect in ["one", "another"] {
        write_kernel(&kernel, defect);
        set_aside(&kernel, &aside).unwrap();
    }
    write(&kernel, "arch/x86/boot/bzImage", "a third");
    write(&kernel, "drivers/a.ko", "a third");
    assert_eq!(fs::read_to_string(aside.image()).unwrap(), "another");
    let module = aside.modules().join("a.ko");
    assert_eq!(fs::read_to_string(module).unwrap(), "another");
    assert!(aside.selftests("mm").join("test").is_file());
    // The selftests are still there after the next kernel is set aside.
    assert!(kernel.selftests("mm").join("test").is_file());
}

#[test]
fn lines_of_kbuild() {
    assert!(is_object("CC      mm/hmm.o"));
    assert!(is_object("RUSTC L rust/kernel.o"));
    assert!(!is_object("make[1]: Entering directory"));
    assert!(!is_object("warning: unused"));
}

/// A place with a tree that has no commit yet.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        fs::create_dir(place.source()).unwrap();
        ask(&place.source(), &["init", "-q"]).unwrap();
        place
    }

    fn root(&self) -> &Path {
        self.0.path()
    }

    fn source(&self) -> PathBuf {
        self.root().join("linux")
    }

    /// Commits all files as they are now.
    fn commit(&self, name: &str) {
        ask(&self.source(), &["add", "-A"]).unwrap();
        let who = ["-c", "user.name=p2p", "-c", "user.email=p2p@localhost"];
        let args = ["commit", "-q", "--allow-empty", "-m", name];
        ask(&self.source(), &[&who[..], &args].concat()).unwrap();
    }

    /// A fake compiler that reports that version.
    fn compiler(&self, version: &str) -> String {
        let path = self.root().join("gcc");
        fs::write(&path, format!("#!/bin/sh\necho gcc {version}\n")).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(&path, mode).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// Builds with that compiler and these user options.
    fn build<T>(&self, cc: &str, config: Option<PathBuf>, use_it: impl Fn(&Builder) -> T) -> T {
        let root = self.root();
        let tree = Tree {
            dir: self.source(),
            base: String::new(),
            tip: String::new(),
            source: String::new(),
            found: crate::tree::Found::default(),
        };
        use_it(&Builder {
            paths: &Paths::within(root),
            ui: &Ui::new(false),
            tools: &Tools {
                bindgen: root.join("bindgen"),
                vng_dir: root.to_owned(),
            },
            tree: &tree,
            compiler: &Compiler {
                llvm: None,
                cc: Some(cc.to_owned()),
                config,
            },
            jobs: 2,
            until: None,
        })
    }
}

/// A kernel that GCC builds.
fn plain<'a>(builder: &'a Builder<'a>, source: &'a Path, output: &'a Path) -> Make<'a> {
    Make {
        builder,
        name: "plain",
        source,
        output,
        arch: None,
        llvm: false,
    }
}

/// A kernel of qemu/kernels.toml.
fn kernel(more: &str) -> Kernel {
    toml::from_str(&format!("tree = 'series'\nfragments = []\n{more}\n")).unwrap()
}

#[test]
fn what_only_one_kernel_lacks_does_not_end_the_run() {
    let place = Place::new();
    // A fake Kconfig without options, and a build that makes nothing.
    let makefile = "allnoconfig:\n\t@touch $(O)/.config\nolddefconfig bzImage modules:\n";
    fs::write(place.source().join("Makefile"), makefile).unwrap();
    place.commit("base");
    let config = place.root().join("user.config");
    fs::write(&config, "CONFIG_ODD=y\n").unwrap();
    let error = place.build(&place.compiler("12"), Some(config), |builder| {
        builder.build("plain", &kernel(""), &[]).unwrap_err()
    });
    let why = error.downcast::<Broken>().unwrap().0;
    assert!(why.contains("CONFIG_ODD"), "{why}");
    let log = place.root().join("build/logs/build-plain.log");
    assert_eq!(fs::read_to_string(log).unwrap().trim_end(), why);

    let error = place.build(&place.compiler("12"), None, |builder| {
        let (source, output) = (place.source(), place.root().join("build/plain"));
        let make = plain(builder, &source, &output);
        make.selftests("nothing", HOST_CC, &builder.ui.step("test"))
            .unwrap_err()
    });
    let why = error.downcast::<Broken>().unwrap().0;
    assert!(why.contains("selftests/nothing"), "{why}");
}

/// Its Makefile is the base's, and does not know of that header.
#[test]
fn a_program_of_the_base_is_built_again_with_a_new_header() {
    let place = Place::new();
    let folder = place.source().join("tools/testing/selftests/mm");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("Makefile"), "$(OUTPUT)/test:\n\tcp uapi.h $@\n").unwrap();
    for text in ["one", "another"] {
        fs::write(folder.join("uapi.h"), text).unwrap();
        place.build(&place.compiler("12"), None, |builder| {
            let (source, output) = (place.source(), place.root().join("build/plain"));
            let make = plain(builder, &source, &output);
            make.selftests("mm/test", HOST_CC, &builder.ui.step("test"))
                .unwrap();
        });
        let built = place.root().join("build/plain/selftests/mm/test");
        assert_eq!(fs::read_to_string(built).unwrap(), text);
    }
}

/// By `make menuconfig`, or with another compiler.
#[test]
fn a_configuration_that_somebody_changed_is_made_again() {
    let place = Place::new();
    let makefile = "allnoconfig:\n\t@cp $$KCONFIG_ALLCONFIG $(O)/.config\nolddefconfig:\n";
    fs::write(place.source().join("Makefile"), makefile).unwrap();
    place.commit("base");
    place.build(&place.compiler("12"), None, |builder| {
        let output = place.root().join("build/plain");
        fs::create_dir_all(&output).unwrap();
        let source = place.source();
        let make = plain(builder, &source, &output);
        let text = "CONFIG_ODD=y\n";
        let wanted = [("CONFIG_ODD".to_owned(), "y".to_owned())].into();
        let step = builder.ui.step("test");
        for _ in 0..2 {
            let refused = make.configure(text, &wanted, &step).unwrap();
            assert!(refused.is_empty(), "{refused:?}");
            fs::write(output.join(".config"), "# CONFIG_ODD is not set\n").unwrap();
        }
    });
}

#[test]
fn a_kernel_that_is_set_aside_may_have_selftests_of_its_own() {
    let place = Place::new();
    let folder = place.source().join("tools/testing/selftests/p2pdma");
    fs::create_dir_all(&folder).unwrap();
    fs::write(
        folder.join("Makefile"),
        "$(OUTPUT)/one: a.c; cp a.c $@\n$(OUTPUT)/two:; false\n",
    )
    .unwrap();
    fs::write(folder.join("a.c"), "defect").unwrap();
    let of = |name| Built {
        dir: place.root().join("build").join(name),
    };
    let (kernel, aside) = (of("kernel"), of("aside"));
    write_kernel(&kernel, "");
    write(&kernel, "selftests/p2pdma/one", "good");
    write(&kernel, "usr/include/a.h", "");
    let read = |of: &Built| fs::read_to_string(of.selftests("p2pdma").join("one")).unwrap();

    set_aside(&kernel, &aside).unwrap();
    assert_eq!(read(&aside), "good");
    let build = |program| {
        place.build(&place.compiler("12"), None, |builder| {
            builder.selftests_aside("kernel", &aside, [program])
        })
    };
    build("p2pdma/one").unwrap();
    assert_eq!(read(&aside), "defect");
    assert_eq!(read(&kernel), "good");
    assert!(aside.dir.join("usr/include/a.h").is_file());
    set_aside(&kernel, &aside).unwrap();
    assert_eq!(read(&aside), "good");
    assert!(build("p2pdma/two").is_err());
}

#[test]
fn the_image_is_where_its_architecture_has_it() {
    let (_dir, [kernel]) = kernels(["kernel"]);
    assert!(kernel.image().ends_with("kernel/arch/x86/boot/bzImage"));
    write(&kernel, "arch/arm64/boot/Image", "");
    assert!(kernel.image().ends_with("kernel/arch/arm64/boot/Image"));
}

#[test]
fn programs_for_a_foreign_guest_are_of_its_root_file_system() {
    let place = Place::new();
    place.commit("base");
    let source = place.source();
    let inputs = |cache: &str, more: &str| {
        place.build(&place.compiler("12"), None, |builder| {
            let paths = Paths {
                cache: place.root().join(cache),
                ..Paths::within(place.root())
            };
            let make = Make {
                builder: &Builder {
                    paths: &paths,
                    ..*builder
                },
                name: "plain",
                source: &source,
                output: &place.root().join("build/plain"),
                arch: None,
                llvm: true,
            };
            make.inputs("", &kernel(more)).unwrap()
        })
    };
    assert_eq!(inputs("one", ""), inputs("two", ""));
    let foreign = |cache| inputs(cache, "arch = 'arm64'");
    assert_ne!(foreign("one"), foreign("two"));
}

#[test]
fn a_kernel_is_built_anew_when_something_has_changed() {
    let place = Place::new();
    place.commit("base");
    let (root, source) = (place.root(), place.source());
    let compiler = |version| place.compiler(version);
    let inputs = |cc: &str, config: &str, more: &str| {
        place.build(cc, None, |builder| {
            let output = root.join("build/plain");
            let make = plain(builder, &source, &output);
            make.inputs(config, &kernel(more)).unwrap()
        })
    };
    let first = inputs(&compiler("12"), "CONFIG_A=y", "").unwrap();
    let again = |cc: &str, config, more| inputs(cc, config, more).unwrap();
    assert_eq!(again(&compiler("12"), "CONFIG_A=y", ""), first);
    assert_ne!(again(&compiler("12"), "CONFIG_A=m", ""), first);
    assert_ne!(
        again(&compiler("12"), "CONFIG_A=y", "modules = true"),
        first
    );
    assert_ne!(
        again(&compiler("12"), "CONFIG_A=y", "selftests = ['mm']"),
        first
    );
    assert_ne!(again(&compiler("13"), "CONFIG_A=y", ""), first);
    assert_eq!(again(&compiler("12"), "CONFIG_A=y", ""), first);
    for path in GUEST_SOURCES {
        fs::create_dir_all(root.join(path).join("folder")).unwrap();
        fs::write(root.join(path).join("a.c"), "").unwrap();
    }
    let guest = again(&compiler("12"), "CONFIG_A=y", "guest = true");
    assert_ne!(guest, first);
    fs::write(root.join("compat/nv-p2p/folder/a.c"), "").unwrap();
    assert_ne!(again(&compiler("12"), "CONFIG_A=y", "guest = true"), guest);
    assert_eq!(again(&compiler("12"), "CONFIG_A=y", ""), first);
    place.commit("patch");
    assert_ne!(again(&compiler("12"), "CONFIG_A=y", ""), first);
    // Only make knows about uncommitted changes.
    fs::write(source.join("a.c"), "").unwrap();
    assert_eq!(inputs(&compiler("12"), "CONFIG_A=y", ""), None);
}
