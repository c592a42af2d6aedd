//! Configures and builds a kernel, its modules and its selftests.
//!
//! The kernel's own make builds, and knows what is out of date. It does not even start if
//! tree, configuration and compiler are the same as in the last successful build.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;
use std::{fmt, fs};

use anyhow::{Context, Result, bail};

use crate::compiler::Compiler;
use crate::tree::{Tree, need_space};
use crate::{Built, VIRTME_MODS, config};
use host::git::ask;
use host::paths::{Paths, digest};
use host::proc::{capture, shown, stream_until, tail};
use host::status::Usage;
use host::ui::{Step, Ui};
use plan::arch::Arch;
use plan::kernels::{Kernel, Kernels, Source};
use setup::{Tools, guest_root, search_path};

/// The sources and configuration of this kernel do not build. Other kernels may still build.
#[derive(Debug)]
pub struct Broken(pub String);

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Broken {}

/// Disk space for a kernel and the files that its tests leave.
const KERNEL_BYTES: u64 = 3 << 30;

/// This file marks a complete build and contains a digest of its inputs.
const MARK: &str = "p2p-built";

/// Where Kbuild puts headers for user space.
const HEADERS: &str = "usr/include";

/// Compiles programs that run in the guest, if its architecture is the host's.
const HOST_CC: &str = "gcc";

/// The selftests that the series adds. A warning in them is an error.
const OURS: &str = "p2pdma";

/// The sources, besides the tree, of the guest's programs that are not selftests.
const GUEST_SOURCES: [&str; 4] = [
    "harness/guest/Makefile",
    "harness/guest/doctor",
    "harness/guest/preload",
    "compat/nv-p2p",
];

/// The sources of the benchmark's programs for the guest.
const BENCH_SOURCES: &str = "harness/guest/bench";

/// The output directory of the benchmark's module and program for a kernel.
pub fn bench_output(kernel: &Built) -> PathBuf {
    kernel.dir.join("bench")
}

/// Kbuild's list of all modules, as objects.
const ORDER: &str = "modules.order";

/// Builds kernels from a tree.
#[derive(Clone, Copy)]
pub struct Builder<'a> {
    /// The directories.
    pub paths: &'a Paths,
    /// Shows progress.
    pub ui: &'a Ui,
    /// The installed tools.
    pub tools: &'a Tools,
    /// The tree to build from.
    pub tree: &'a Tree,
    /// The user's choice of compiler.
    pub compiler: &'a Compiler,
    /// The number of parallel jobs.
    pub jobs: usize,
    /// When to end a build; it then fails with [`OutOfTime`](host::proc::OutOfTime).
    pub until: Option<Instant>,
}

impl Builder<'_> {
    /// A builder with the same settings for another tree.
    pub fn of<'b>(&'b self, tree: &'b Tree) -> Builder<'b> {
        Builder { tree, ..*self }
    }

    /// Builds the kernels with these names.
    pub fn all(&self, kernels: &Kernels, names: &[&str]) -> Result<()> {
        for name in kernels.in_order(names) {
            self.one(kernels, name)?;
        }
        Ok(())
    }

    /// Builds the kernel with that name, and its selftests.
    pub fn one(&self, kernels: &Kernels, name: &str) -> Result<()> {
        let kernel = kernels.get(name)?;
        if !kernel.is_built_only() {
            let siblings = kernels.of(kernel.tree, kernel.arch);
            let siblings: Vec<_> = siblings.map(|name| Built::at(self.paths, name)).collect();
            take_headers(&siblings, &Built::at(self.paths, name))?;
        }
        let seeds: Vec<_> = kernels.seeds(name).collect();
        self.build(name, kernel, &seeds)
    }

    /// Builds a kernel with its selftests. `seeds` are kernels of the same tree. If the
    /// kernel is new, it starts from the objects of the first seed that exists.
    pub fn build(&self, name: &str, kernel: &Kernel, seeds: &[&str]) -> Result<()> {
        if kernel.llvm && self.compiler.llvm.is_none() && self.compiler.cc.is_some() {
            bail!(Usage(format!(
                "kernel {name} can be built by LLVM alone: leave CC= out, or use ONLY="
            )));
        }
        let source = self.source(kernel)?;
        let built = Built::at(self.paths, name);
        fs::create_dir_all(&built.dir)?;
        let make = Make {
            builder: self,
            name,
            source: &source,
            output: &built.dir,
            arch: kernel.arch.foreign(),
            llvm: kernel.llvm,
        };
        let mut wanted = config::wanted(&self.paths.root, &kernel.fragments)?;
        if let Some(file) = &self.compiler.config {
            wanted.extend(config::read(file)?);
        }
        let text = config::text(&wanted);
        let inputs = make.inputs(&text, kernel)?;
        let mark = built.dir.join(MARK);
        let is_there = if kernel.is_built_only() {
            mark.is_file()
        } else {
            built.image().is_file()
        };
        if inputs.is_some() && fs::read_to_string(&mark).ok() == inputs && is_there {
            return Ok(());
        }
        need_space(&built.dir, if is_there { 1 << 28 } else { KERNEL_BYTES })?;
        let _ = fs::remove_file(&mark);

        let step = self.ui.step(format!("build: kernel {name}"));
        let seeds: Vec<_> = seeds
            .iter()
            .map(|seed| Built::at(self.paths, seed))
            .collect();
        begin_with(&seeds, &built)?;
        let refused = make.configure(&text, &wanted, &step)?;
        if !refused.is_empty() {
            return make.broken(format!(
                "kernel {name}: Kconfig refuses these options (a dependency is missing, or \
                 they are not in this tree):\n    {}",
                refused.join("\n    ")
            ));
        }
        let jobs = format!("-j{}", self.jobs);
        make.run(&arguments(&jobs, kernel), &step)?;
        if !kernel.is_built_only() {
            link_modules(&built)?;
            self.index_modules(&built)?;
            let cc = self.programs_compiler(kernel.arch)?;
            for entry in &kernel.selftests {
                make.selftests(entry, &cc, &step)?;
            }
            if kernel.guest {
                make.guest(&step)?;
            }
        }
        if let Some(inputs) = inputs {
            fs::write(&mark, inputs)?;
        }
        step.done("built");
        Ok(())
    }

    /// The compiler for programs that run in the guest. For a foreign architecture it takes headers
    /// and libraries from the guest's root file system.
    fn programs_compiler(&self, arch: Arch) -> Result<String> {
        if !arch.is_foreign() {
            return Ok(HOST_CC.to_owned());
        }
        let root = guest_root::get(self.paths, self.ui, arch)?;
        let (clang, triple) = (self.compiler.clang(), arch.triple());
        Ok(format!(
            "{clang} --target={triple} --sysroot={} -fuse-ld=lld",
            root.display()
        ))
    }

    /// Prepares the module folder that vng uses. vng would do so itself, but two machines
    /// that start together would do it at the same time.
    fn index_modules(&self, built: &Built) -> Result<()> {
        let program = self.tools.vng_dir.join("virtme-prep-kdir-mods");
        capture(Command::new(program).current_dir(&built.dir)).map(drop)
    }

    /// Builds the benchmark's module and program for a built kernel.
    pub fn bench(&self, name: &str, kernel: &Kernel) -> Result<()> {
        let source = self.source(kernel)?;
        let built = Built::at(self.paths, name);
        let output = bench_output(&built);
        fs::create_dir_all(&output)?;
        let make = Make {
            builder: self,
            name,
            arch: None,
            llvm: kernel.llvm,
            source: &source,
            output: &built.dir,
        };
        let step = self.ui.step(format!("build: benchmark for {name}"));
        let sources = self.paths.root.join(BENCH_SOURCES);
        let module = format!("M={}", sources.display());
        make.run(
            &[&module, &format!("MO={}", output.display()), "modules"],
            &step,
        )?;
        let library = self.tree.dir.join("tools/testing/selftests").join(OURS);
        let mut command = make.bare("gcc")?;
        command
            .args(["-O2", "-Wall", "-Werror", "-idirafter"])
            // Only this directory has the interface of the test devices.
            .arg(self.tree.dir.join("include/uapi"))
            // test_hmm's interface is <lib/test_hmm_uapi.h>.
            .arg("-idirafter")
            .arg(&self.tree.dir)
            .arg("-I")
            .arg(&library)
            .arg("-o")
            .arg(output.join("bench"))
            .arg(sources.join("bench.c"))
            .args(["p2p_cache.c", "p2ptest.c", "p2p_sysfs.c"].map(|file| library.join(file)));
        make.finish(command, &step)
    }

    fn source(&self, kernel: &Kernel) -> Result<PathBuf> {
        match (kernel.tree, &kernel.patch) {
            (Source::Series, None) => Ok(self.tree.dir.clone()),
            (Source::Base, None) => self.tree.base_worktree(self.paths, self.ui),
            (Source::Base, Some(patch)) => self.tree.patched_base(self.paths, self.ui, patch),
            (Source::Series, Some(_)) => bail!("qemu/kernels.toml: only the base takes a `patch`"),
        }
    }

    /// Builds what has changed in a kernel that was built before. Does not build its
    /// selftests.
    pub fn again(&self, name: &str, kernel: &Kernel) -> Result<()> {
        let built = Built::at(self.paths, name);
        // The build no longer matches the mark.
        let _ = fs::remove_file(built.dir.join(MARK));
        let make = Make {
            builder: self,
            name,
            arch: None,
            llvm: kernel.llvm,
            source: &self.tree.dir,
            output: &built.dir,
        };
        let step = self.ui.step(format!("build: kernel {name}"));
        let jobs = format!("-j{}", self.jobs);
        make.run(&[&jobs, "bzImage", "modules"], &step)?;
        link_modules(&built)
    }

    /// Builds selftests of their own, `folder/program`, for a kernel that was set aside from
    /// `name`. It then has no others.
    pub fn selftests_aside<'p>(
        &self,
        name: &str,
        aside: &Built,
        programs: impl IntoIterator<Item = &'p str>,
    ) -> Result<()> {
        fs::remove_file(aside.dir.join("selftests"))?;
        let headers = Built::at(self.paths, name).dir.join(HEADERS);
        let link = aside.dir.join(HEADERS);
        fs::create_dir_all(link.parent().expect("it is in a folder"))?;
        symlink(headers, link)?;
        let make = Make {
            builder: self,
            name,
            arch: None,
            // Selftests are built with GCC.
            llvm: false,
            source: &self.tree.dir,
            output: &aside.dir,
        };
        let step = self.ui.step(format!("build: selftests {name}"));
        let mut programs = programs.into_iter();
        programs.try_for_each(|program| make.selftests(program, HOST_CC, &step))
    }
}

/// Arguments that build a kernel. If the build is a test, it continues after errors, and a
/// warning is an error. Otherwise the object with a warning would exist, and the next run
/// of make would not show the warning.
fn arguments<'a>(jobs: &'a str, kernel: &'a Kernel) -> Vec<&'a str> {
    let mut arguments = vec![jobs];
    if kernel.is_built_only() {
        arguments.extend(["--keep-going", "W=1e"]);
        arguments.extend(kernel.targets.iter().map(String::as_str));
        return arguments;
    }
    if kernel.modules {
        // Not for built-in code, because its objects come from another kernel.
        let strict = ["CFLAGS_MODULE=-Werror", "RUSTFLAGS_MODULE=-Dwarnings"];
        arguments.push("--keep-going");
        arguments.extend(strict);
    }
    // `headers` go to usr/, where vng and the selftests look for them.
    arguments.extend([kernel.arch.image().0, "modules", "headers"]);
    arguments
}

/// Path and digest of a file, or of each file in a folder, sorted by name.
fn contents(path: &Path) -> Result<String> {
    if !path.is_dir() {
        let bytes = fs::read(path).with_context(|| path.display().to_string())?;
        return Ok(format!("\n{} {}", path.display(), digest(&bytes)));
    }
    let entries = fs::read_dir(path)?.map(|entry| entry.map(|entry| entry.path()));
    let mut paths: Vec<_> = entries.collect::<Result<_, _>>()?;
    paths.sort();
    paths.iter().map(|path| contents(path)).collect()
}

/// Copies another kernel's headers for user space if the kernel has none yet. Both kernels
/// are from the same tree. This saves a thousand runs of a script. Kbuild remakes headers
/// whose source is newer.
fn take_headers(siblings: &[Built], built: &Built) -> Result<()> {
    let headers = |built: &Built| built.dir.join(HEADERS);
    let to = headers(built);
    let has = |other: &&Built| other.dir.join(MARK).is_file() && headers(other).is_dir();
    let Some(other) = siblings.iter().find(has).filter(|_| !to.exists()) else {
        return Ok(());
    };
    fs::create_dir_all(to.parent().expect("it is in a folder"))?;
    let partial = partial_copy(&headers(other), &to)?;
    Ok(fs::rename(&partial, &to)?)
}

/// Copies a folder under a temporary name. The caller renames the finished copy to `to`,
/// so an interrupted copy never has that name.
fn partial_copy(from: &Path, to: &Path) -> Result<PathBuf> {
    let partial = to.with_extension("partial");
    remove(&partial)?;
    let cp = ["--archive", "--reflink=auto"];
    capture(Command::new("cp").args(cp).args([from, &partial]))?;
    Ok(partial)
}

/// Removes a folder if it exists.
fn remove(dir: &Path) -> Result<()> {
    if dir.exists() {
        fs::remove_dir_all(dir).with_context(|| dir.display().to_string())?;
    }
    Ok(())
}

/// Copies the objects of the first built seed if the kernel was not built yet. Kbuild
/// knows the options that an object depends on, and rebuilds it where they differ.
fn begin_with(seeds: &[Built], built: &Built) -> Result<()> {
    if built.dir.join(".config").is_file() {
        return Ok(());
    }
    let is_whole = |seed: &&Built| seed.dir.join(MARK).is_file();
    let Some(seed) = seeds.iter().find(is_whole) else {
        return Ok(());
    };
    let partial = partial_copy(&seed.dir, &built.dir)?;
    remove(&built.dir)?;
    // Kbuild did not make these, and they contain the name of their folder.
    for name in ["ko", "bench", VIRTME_MODS] {
        remove(&partial.join(name))?;
    }
    fs::remove_file(partial.join(MARK))?;
    rename_in_tools(&partial.join("tools"), &seed.dir, &built.dir)?;
    Ok(fs::rename(&partial, &built.dir)?)
}

/// Renames the folder in the saved commands of tools/. Otherwise Kbuild would take these
/// programs for outdated and rebuild them, and because of objtool all objects as well.
fn rename_in_tools(dir: &Path, old: &Path, new: &Path) -> Result<()> {
    let (old, new) = (old.to_string_lossy(), new.to_string_lossy());
    let names = |root: &str| [format!("{root}/"), format!("{root} ")];
    for entry in fs::read_dir(dir).with_context(|| dir.display().to_string())? {
        let path = entry?.path();
        let is = |end| path.extension().is_some_and(|ext| ext == end);
        if path.is_dir() && !path.is_symlink() {
            rename_in_tools(&path, Path::new(&*old), Path::new(&*new))?;
        } else if is("cmd") || is("d") {
            let mut text = fs::read_to_string(&path)?;
            for (old, new) in names(&old).iter().zip(names(&new)) {
                text = text.replace(old, &new);
            }
            fs::write(&path, text)?;
        }
    }
    Ok(())
}

/// Links all modules into one folder, for the guest's `insmod` and the selftests.
fn link_modules(built: &Built) -> Result<()> {
    let ko = built.modules();
    if ko.exists() {
        fs::remove_dir_all(&ko)?;
    }
    fs::create_dir_all(&ko)?;
    let order = built.dir.join(ORDER);
    let list = fs::read_to_string(&order).with_context(|| order.display().to_string())?;
    for object in list.lines() {
        let module = Path::new(object).with_extension("ko");
        let name = module.file_name().context("a module has a name")?;
        symlink(Path::new("..").join(&module), ko.join(name))?;
    }
    Ok(())
}

/// Copies everything that a machine needs of a kernel, so that it can run during the next
/// build. Selftests stay where they are: see [`Builder::selftests_aside`] if they change.
pub fn set_aside(built: &Built, aside: &Built) -> Result<()> {
    if aside.dir.exists() {
        fs::remove_dir_all(&aside.dir).with_context(|| aside.dir.display().to_string())?;
    }
    let list = fs::read_to_string(built.dir.join(ORDER))?;
    let modules = list.lines().map(|o| Path::new(o).with_extension("ko"));
    // vng looks for the configuration and the lists beside the image.
    let lists = [
        ".config",
        "System.map",
        ORDER,
        "modules.builtin",
        "modules.builtin.modinfo",
    ];
    let image = built.image();
    let image = image.strip_prefix(&built.dir)?;
    for file in lists
        .map(PathBuf::from)
        .into_iter()
        .chain([image.to_owned()])
        .chain(modules)
    {
        let to = aside.dir.join(&file);
        fs::create_dir_all(to.parent().expect("it is in a folder"))?;
        fs::copy(built.dir.join(&file), &to).with_context(|| to.display().to_string())?;
    }
    link_modules(aside)?;
    Ok(symlink(
        built.dir.join("selftests"),
        aside.dir.join("selftests"),
    )?)
}

/// Runs the kernel's make for one kernel.
pub struct Make<'a> {
    /// The builder's settings.
    pub builder: &'a Builder<'a>,
    /// The name of its log.
    pub name: &'a str,
    /// The tree.
    pub source: &'a Path,
    /// The output directory.
    pub output: &'a Path,
    /// `ARCH=`, if it is not this machine's.
    pub arch: Option<&'a str>,
    /// Whether LLVM builds it unless the user chooses otherwise.
    pub llvm: bool,
}

impl Make<'_> {
    /// A digest of everything that the build depends on. `None` if the tree has
    /// uncommitted changes: then only the kernel's make can find out.
    fn inputs(&self, config: &str, kernel: &Kernel) -> Result<Option<String>> {
        let changes = ask(self.source, &["status", "--porcelain"])?;
        if !changes.is_empty() {
            return Ok(None);
        }
        let head = ask(self.source, &["rev-parse", "HEAD"])?;
        let command = shown(&self.command()?);
        let path = search_path(self.builder.tools)?;
        let versions = self.builder.compiler.versions(self.llvm, &path);
        let mut all = format!(
            "{head}\n{command}\n{versions}\n{config}\n{:?}\n{:?}",
            kernel.selftests,
            arguments("", kernel)
        );
        if kernel.arch.is_foreign() {
            let root = guest_root::place(self.builder.paths, kernel.arch);
            all.push_str(&root.to_string_lossy());
        }
        if kernel.guest {
            for path in GUEST_SOURCES {
                all.push_str(&contents(&self.builder.paths.root.join(path))?);
            }
        }
        Ok(Some(digest(all.as_bytes())))
    }

    fn command(&self) -> Result<Command> {
        let mut command = self.bare("make")?;
        command.arg("-C").arg(self.source);
        command.arg(format!("O={}", self.output.display()));
        if let Some(arch) = self.arch {
            command.arg(format!("ARCH={arch}"));
        }
        let compiler = self.builder.compiler;
        command.args(compiler.arguments(self.llvm, &self.builder.paths.root));
        for (variable, program) in [
            ("RUSTC", "/usr/bin/rustc"),
            ("RUSTDOC", "/usr/bin/rustdoc"),
            ("RUSTFMT", "/usr/bin/rustfmt"),
            ("HOSTRUSTC", "/usr/bin/rustc"),
        ] {
            command.arg(format!("{variable}={program}"));
        }
        command.arg(format!("BINDGEN={}", self.builder.tools.bindgen.display()));
        Ok(command)
    }

    /// A command in an environment that makes builds reproducible.
    fn bare(&self, program: &str) -> Result<Command> {
        let mut command = Command::new(program);
        for name in [
            "MAKEFLAGS",
            "MFLAGS",
            "MAKELEVEL",
            "MAKEOVERRIDES",
            "O",
            "KBUILD_OUTPUT",
            "LLVM",
            "ARCH",
            "CROSS_COMPILE",
        ] {
            command.env_remove(name);
        }
        command
            .env("PATH", search_path(self.builder.tools)?)
            .env("LC_ALL", "C")
            .env("LIBCLANG_PATH", "/usr/lib/llvm-19/lib")
            .env("CCACHE_DIR", self.builder.paths.cache.join("ccache"))
            .env("CCACHE_BASEDIR", &self.builder.paths.work)
            .env("CCACHE_NOHASHDIR", "1")
            .env("CCACHE_MAXSIZE", "5G")
            .env("KBUILD_BUILD_TIMESTAMP", "Thu Jan 1 00:00:00 UTC 1970")
            .env("KBUILD_BUILD_USER", "p2p")
            .env("KBUILD_BUILD_HOST", "p2p");
        Ok(command)
    }

    /// Configures. Returns the options that Kconfig set differently.
    pub fn configure(
        &self,
        text: &str,
        wanted: &config::Options,
        step: &Step<'_>,
    ) -> Result<Vec<String>> {
        let fragment = self.output.join("p2p.config");
        let config = self.output.join(".config");
        let refused = || config::refused(wanted, &fs::read_to_string(&config)?);
        // An unchanged configuration keeps its time stamp, so make has less to do. Somebody
        // may have changed it.
        if fs::read_to_string(&fragment).ok().as_deref() == Some(text) && config.is_file() {
            self.run(&["olddefconfig"], step)?;
            if refused()?.is_empty() {
                return Ok(Vec::new());
            }
        }
        fs::write(&fragment, text)?;
        let mut command = self.command()?;
        command
            .arg("allnoconfig")
            .env("KCONFIG_ALLCONFIG", &fragment);
        self.finish(command, step)?;
        let refused = refused()?;
        if !refused.is_empty() {
            fs::remove_file(&fragment)?;
        }
        Ok(refused)
    }

    /// Builds these selftests, and what else machines need of a kernel that was built.
    pub fn for_machines<'p>(
        &self,
        selftests: impl IntoIterator<Item = &'p str>,
        step: &Step<'_>,
    ) -> Result<()> {
        self.run(&["headers"], step)?;
        link_modules(&Built {
            dir: self.output.to_owned(),
        })?;
        for entry in selftests {
            self.selftests(entry, HOST_CC, step)?;
        }
        Ok(())
    }

    /// Builds these targets.
    pub fn run(&self, targets: &[&str], step: &Step<'_>) -> Result<()> {
        let mut command = self.command()?;
        command.args(targets);
        self.finish(command, step)
    }

    /// `entry`: `folder` or `folder/program`. `cc`: the compiler.
    fn selftests(&self, entry: &str, cc: &str, step: &Step<'_>) -> Result<()> {
        let all = self.source.join("tools/testing/selftests");
        let (folder, program) = match entry.rsplit_once('/') {
            // A folder may be inside another folder.
            Some((folder, program)) if !all.join(entry).is_dir() => (folder, Some(program)),
            _ => (entry, None),
        };
        let source = all.join(folder);
        if !source.is_dir() {
            let source = source.display();
            return self.broken(format!("kernel {}: the tree has no {source}", self.name));
        }
        let output = self.output.join("selftests").join(folder);
        fs::create_dir_all(&output)?;
        let headers = self.output.join(HEADERS);
        let mut command = self.bare("make")?;
        command
            .arg("-C")
            .arg(&source)
            .arg(format!("-j{}", self.builder.jobs))
            .arg(format!("OUTPUT={}", output.display()))
            .arg(format!("KHDR_INCLUDES=-isystem {}", headers.display()))
            .arg(format!("CC={cc}"));
        if let Some(arch) = self.arch {
            command.arg(format!("ARCH={arch}"));
        }
        if Path::new(folder).starts_with(OURS) {
            command.arg("USERCFLAGS=-Werror");
        }
        if let Some(program) = program {
            // A Makefile of the base does not name all headers: make would keep an old program.
            command.arg("--always-make").arg(output.join(program));
        }
        self.finish(command, step)
    }

    /// Builds the guest's programs besides selftests.
    fn guest(&self, step: &Step<'_>) -> Result<()> {
        let [programs, modules] =
            ["harness/guest", "compat/nv-p2p"].map(|dir| self.builder.paths.root.join(dir));
        let output = self.output.join("guest");
        fs::create_dir_all(&output)?;
        let library = self.source.join("tools/testing/selftests").join(OURS);
        let mut command = self.bare("make")?;
        command
            .arg("-C")
            .arg(programs)
            .arg(format!("OUTPUT={}", output.display()))
            .arg(format!("KERNEL={}", self.output.display()))
            .arg(format!("LIBRARY={}", library.display()))
            .arg(format!("CC={HOST_CC}"));
        self.finish(command, step)?;
        let sources = format!("M={}", modules.display());
        let output = format!("MO={}", output.join("nv-p2p").display());
        self.run(&[&sources, &output, "TEST=m", "W=1e", "modules"], step)
    }

    /// The log of the last command.
    pub fn log(&self) -> PathBuf {
        log(self.builder.paths, self.name)
    }

    /// Reports why this kernel cannot be built, and adds it to the log.
    fn broken(&self, why: String) -> Result<()> {
        let log = self.log();
        fs::create_dir_all(log.parent().expect("it is in a folder"))?;
        fs::write(&log, format!("{why}\n"))?;
        bail!(Broken(why))
    }

    fn finish(&self, command: Command, step: &Step<'_>) -> Result<()> {
        let log = self.log();
        fs::create_dir_all(log.parent().expect("it is in a folder"))?;
        if self.builder.ui.verbose {
            self.builder.ui.say(format!("+ {}", shown(&command)));
        }
        let text = shown(&command);
        let mut lines = 0;
        let status = stream_until(self.builder.until, command, &log, |line| {
            let line = line.trim();
            // "CC      mm/hmm.o", "RUSTC L rust/kernel.o", "LD [M]  ..."
            if let Some(object) = line.split_whitespace().last().filter(|_| is_object(line)) {
                lines += 1;
                step.at(format!("{lines} made · {object}"));
            }
        })?;
        if !status.success() {
            let log_text = fs::read_to_string(&log).unwrap_or_default();
            bail!(Broken(format!(
                "kernel {} could not be built:\n{}\nThe whole log: {}\nTo repeat: {text}",
                self.name,
                complaints(&log_text),
                self.builder.paths.short(&log),
            )));
        }
        Ok(())
    }
}

/// The log of the build with that name.
pub fn log(paths: &Paths, name: &str) -> PathBuf {
    let name = name.replace('/', "-");
    paths.logs().join(format!("build-{name}.log"))
}

/// Whether a Kbuild line announces an object.
fn is_object(line: &str) -> bool {
    line.split_whitespace()
        .next()
        .is_some_and(|word| word.len() > 1 && word.bytes().all(|b| b.is_ascii_uppercase()))
}

/// The lines with errors, or the last lines if there are none.
fn complaints(log: &str) -> String {
    let lines: Vec<_> = log.lines().collect();
    let first = lines.iter().position(|line| {
        ["error:", "error[", "Error:", "undefined", "No space left"]
            .iter()
            .any(|word| line.contains(word))
    });
    match first {
        Some(at) => lines[at..lines.len().min(at + 25)].join("\n"),
        None => tail(log, 20),
    }
    .lines()
    .map(|line| format!("    {line}"))
    .collect::<Vec<_>>()
    .join("\n")
}

#[cfg(test)]
mod tests;
