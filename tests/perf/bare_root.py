"""A root directory with glibc, bash, coreutils and Python alone, of this machine's files: nothing of MPI, HDF5, libaio or
Boost. What is to run there is put into it, and runs in processes that all end with the one that started them."""
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

# Of bash, coreutils and libc-bin, what the scripts there call.
PROGRAMS = ["bash", "basename", "cat", "chmod", "cp", "cut", "dirname", "env", "getconf", "head", "id", "ln", "ls", "mkdir", "mv", "nproc",
            "paste", "readlink", "realpath", "rm", "rmdir", "sleep", "sort", "stat", "tail", "touch", "tr", "uname", "wc"]
DEVICES = ["null", "zero", "full", "random", "urandom"]


def libraries_of(files):
    """Paths of what they load at their start, the loader with them."""
    found = set()
    for line in subprocess.run(["ldd", *files], capture_output=True, text=True, check=False).stdout.splitlines():
        words = line.split()
        if "=>" in words and words[2:] and words[2].startswith("/"):
            found.add(words[2])
        elif words and words[0].startswith("/") and not line.endswith(":"):
            found.add(words[0])
    return found


def namespaces():
    """The command that gives a process mounts and processes of its own; None where this machine does not let us."""
    for more in [], ["--user", "--map-root-user"]:
        command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", *more]
        tried = subprocess.run([*command, "mount", "-t", "proc", "proc", "/proc"], capture_output=True, check=False)
        if tried.returncode == 0:
            return command
    return None


class BareRoot:
    def __init__(self, root, command):
        self.root, self.command = Path(root), command
        for place in ("dev/shm", "etc", "out", "proc", "tmp", "usr/bin", "usr/lib", "usr/lib64"):
            (self.root / place).mkdir(parents=True)
        for place in "bin", "lib", "lib64":
            (self.root / place).symlink_to(f"usr/{place}")
        for name in DEVICES:
            (self.root / "dev" / name).touch()
        (self.root / "etc/passwd").write_text("root:x:0:0:root:/tmp:/bin/bash\n")
        (self.root / "etc/hosts").write_text("127.0.0.1 localhost\n")
        self.add_programs()

    def add(self, source, place):
        target = self.root / str(place).lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target)

    def add_programs(self):
        files = [shutil.which(name, path="/usr/bin:/bin") for name in PROGRAMS]
        for file in files:
            self.add(file, f"usr/bin/{Path(file).name}")
        python = os.path.realpath(sys.executable)
        modules = Path(sysconfig.get_path("stdlib"))
        # Where it looks for its modules, as no PYTHONHOME is set there.
        self.add(python, python)
        (self.root / "usr/bin/python3").symlink_to(python)
        shutil.copytree(modules, self.root / str(modules).lstrip("/"), symlinks=False,
                        ignore=shutil.ignore_patterns("__pycache__", "test", "tests", "site-packages", "dist-packages", "idlelib",
                                                      "tkinter", "ensurepip", "lib2to3", "config-*", "*.a"))
        extensions = [str(file) for file in modules.rglob("lib-dynload/*.so")]
        for library in libraries_of([*files, python, *extensions]):
            self.add(library, library)

    def start(self, *words, **environment):
        """The running command, its output on a pipe. Killed, it takes with it all that it started there."""
        binds = " && ".join(f"mount --bind /dev/{name} {self.root}/dev/{name}" for name in DEVICES)
        # Open MPI names its files by process ids, which runs side by side share.
        own = " && ".join(f"mount -t tmpfs tmpfs {self.root}/{place}" for place in ("tmp", "dev/shm"))
        script = (f"mount -t proc proc {self.root}/proc && {binds} && {own} && "
                  f'exec chroot {self.root} /usr/bin/env -i PATH=/usr/bin HOME=/tmp "$@"')
        settings = [f"{name}={value}" for name, value in environment.items()]
        return subprocess.Popen([*self.command, "bash", "-c", script, "bash", *settings, *words],
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
