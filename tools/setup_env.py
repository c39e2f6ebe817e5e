"""Make a virtual environment that is also a ROS 2 prefix, with this package in it.

Only the standard library and old syntax, so that an old Python gets as far as being told so.
In place: the generated messages are installed into the environment, while modules, launch and
config files stay in this tree. A .pth line puts the tree on the path, where its __init__ is the
only one (the generated one is removed) and its extend_path finds the messages.
"""

import argparse
import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = 'oxygen_ros'
REQUIREMENTS = ('base', 'models', 'build', 'dev')
STEPS = 5
# What a sourced ROS 2 leaves in a shell, and what would lead Python past the environment. The
# first is the wheels' mark that LD_LIBRARY_PATH is set; a Python without it restarts with it set.
FOREIGN_VARIABLES = (
    '_ROS_WHEELS_BOOTSTRAP_COMPLETE',
    'AMENT_PREFIX_PATH',
    'CMAKE_PREFIX_PATH',
    'COLCON_PREFIX_PATH',
    'PYTHONHOME',
    'PYTHONPATH',
    'RMW_IMPLEMENTATION',
    'ROS_DISTRO',
)


class SetupError(Exception):
    """Something on this machine that the user can mend, in one line."""


def main() -> int:
    """Bring the environment up to date, then become the command given; returns an exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--venv', type=Path, default=ROOT / '.venv')
    parser.add_argument('--distro', default='jazzy', help='a requirements/ros-DISTRO.txt')
    parser.add_argument('command', nargs='*', help='what to run in the environment, after --')
    arguments = parser.parse_args()
    venv = arguments.venv.absolute()
    try:
        setup(venv, arguments.distro)
    except SetupError as error:
        print('set-up: {}'.format(error), file=sys.stderr, flush=True)
        return 1
    except KeyboardInterrupt:
        print('set-up: stopped; the next run starts over', file=sys.stderr, flush=True)
        return 130
    if arguments.command:
        os.execvpe(arguments.command[0], arguments.command, clean_environment(venv))
    return 0


def setup(venv: Path, distro: str) -> None:
    """Make what is missing or out of date in venv; does nothing when nothing is."""
    check_python(sys.version_info)
    files = requirement_files(distro)
    packages = digest(files, sys.base_prefix, '{}.{}'.format(*sys.version_info), str(venv))
    messages = digest(message_files(), packages, *(file.name for file in launch_files()))
    lock = os.open(str(ROOT), os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # a second make waits for the first
        if not is_current(venv, 'packages', packages):
            make_packages(venv, files, packages)
        if not is_current(venv, 'messages', messages):
            make_messages(venv, messages)
    finally:
        os.close(lock)


def make_packages(venv: Path, files: 'list[Path]', stamp: str) -> None:
    """Start from an empty venv: pip cannot mend an install that was cut short."""
    with step(1, 'tools of this machine'):
        check_machine()
    with step(2, '{} with Python {}'.format(venv.name, platform.python_version())):
        if venv.exists():
            shutil.rmtree(str(venv))
        # Not sys.executable: that may be the one in the venv just removed.
        run([sys._base_executable, '-m', 'venv', str(venv)], dict(os.environ))
    with step(3, 'packages: 0.5 GB to fetch, more where torch comes with CUDA'):
        install(venv, files)
    with step(4, "paths in the wheels' CMake files"):
        mend_exports(venv)
    write_stamp(venv, 'packages', stamp)


def make_messages(venv: Path, stamp: str) -> None:
    """Generate, compile and install the messages, then link the rest of the tree."""
    with step(5, 'messages'):
        check_machine()
        remove_installed(venv)
        build = venv / 'build' / PACKAGE
        cmake_install(venv, build, clean_environment(venv), ['-DOXYGEN_IN_PLACE=ON'])
        link_tree(venv)
    write_stamp(venv, 'messages', stamp)


def check_python(version: tuple) -> None:
    """Refuse a Python for which there are no wheels of ROS 2 or torch."""
    if not (3, 10) <= tuple(version[:2]) <= (3, 13):
        raise SetupError(
            '{} is Python {}.{}, but 3.10 to 3.13 is needed: name another one, for example '
            'make PYTHON=python3.12'.format(sys.executable, *version)
        )


def check_machine() -> None:
    """Refuse a machine on which a later step would fail with a long message."""
    if (platform.system(), platform.machine()) != ('Linux', 'x86_64'):
        raise SetupError(
            'there are ROS 2 wheels for Linux on x86_64, not for {} on {}: install ROS 2 there '
            'and use colcon build (see README)'.format(platform.system(), platform.machine())
        )
    for variable, name in (('CC', 'cc'), ('CXX', 'c++')):
        compiler = os.environ.get(variable, name).split()[0]
        if shutil.which(compiler) is None:
            raise SetupError(
                'no C++ compiler: {} is not found. Install one (Debian, Ubuntu: apt install g++) '
                'or set CC and CXX'.format(compiler)
            )
    try:
        import ensurepip  # noqa: F401
    except ImportError:
        raise SetupError(
            '{} cannot make virtual environments. Install its venv module (Debian, Ubuntu: '
            'apt install python3-venv)'.format(sys.executable)
        ) from None
    header = Path(sysconfig.get_path('include'), 'Python.h')
    if not header.is_file():
        raise SetupError(
            "{} is missing. Install Python's headers (Debian, Ubuntu: "
            'apt install python3-dev)'.format(header)
        )


def requirement_files(distro: str) -> 'list[Path]':
    """List the requirement files of a ROS 2 distro, constraints last."""
    known = sorted(path.stem[4:] for path in (ROOT / 'requirements').glob('ros-*.txt'))
    if distro not in known:
        raise SetupError('no wheels are pinned for {!r}: use {}'.format(distro, ', '.join(known)))
    names = ['ros-{}'.format(distro)] + list(REQUIREMENTS) + ['constraints']
    return [ROOT / 'requirements' / '{}.txt'.format(name) for name in names]


def message_files() -> 'list[Path]':
    """List what the installed files are made from, this script included."""
    files = [ROOT / 'CMakeLists.txt', ROOT / 'package.xml', Path(__file__).resolve()]
    return files + sorted((ROOT / 'scripts').iterdir()) + sorted((ROOT / 'msg').glob('*.msg'))


def launch_files() -> 'list[Path]':
    """List the launch files, which are linked one by one."""
    return sorted((ROOT / 'launch').glob('*.launch.py'))


def digest(files: 'list[Path]', *texts: str) -> str:
    """Hash names and contents of files, and texts."""
    total = hashlib.sha256()
    for path in files:
        content = path.read_bytes()
        total.update('{} {}\n'.format(path.name, len(content)).encode())
        total.update(content)
    for text in texts:
        total.update('\n{}'.format(text).encode())
    return total.hexdigest()


def is_current(venv: Path, name: str, stamp: str) -> bool:
    """Tell whether a part was finished for this stamp and its Python is still there."""
    path = venv / '{}.stamp'.format(name)
    return (venv / 'bin' / 'python').exists() and path.is_file() and path.read_text() == stamp


def write_stamp(venv: Path, name: str, stamp: str) -> None:
    """Record that a part is finished."""
    (venv / '{}.stamp'.format(name)).write_text(stamp)


def clean_environment(venv: Path) -> 'dict[str, str]':
    """Copy this shell's environment without a sourced ROS 2, and with venv activated."""
    prefixes = [p for p in os.environ.get('AMENT_PREFIX_PATH', '').split(os.pathsep) if p]
    environment = {k: v for k, v in os.environ.items() if k not in FOREIGN_VARIABLES}
    for name in ('PATH', 'LD_LIBRARY_PATH'):
        entries = environment.get(name, '').split(os.pathsep)
        kept = [e for e in entries if e and not any(e.startswith(p) for p in prefixes)]
        if name in environment:
            environment[name] = os.pathsep.join(kept)
    environment['PATH'] = os.pathsep.join([str(venv / 'bin'), environment.get('PATH', '')])
    environment['VIRTUAL_ENV'] = str(venv)
    environment['AMENT_PREFIX_PATH'] = str(venv)
    return environment


def install(venv: Path, files: 'list[Path]') -> None:
    """Let pip install all requirement files at once, so that they are resolved together."""
    command = [str(venv / 'bin' / 'python'), '-m', 'pip', 'install', '--no-input']
    command += ['--disable-pip-version-check', '--progress-bar', 'off']
    for path in files:
        command += ['-c' if path.stem == 'constraints' else '-r', str(path)]
    run(
        command,
        clean_environment(venv),
        shown=r'Downloading \S+ \([\d.]+ [MG]B\)|Installing collected packages',
    )


def mend_exports(prefix: Path) -> int:
    """Put this Python's include folders into the wheels' CMake files; returns how many changed.

    They name folders of the machine that built the wheels. A mended file has none left, so a
    second call changes nothing.
    """
    code = 'import sysconfig, numpy; print(sysconfig.get_path("include"), numpy.get_include())'
    python = str(prefix / 'bin' / 'python')
    answer = subprocess.check_output([python, '-c', code], env=clean_environment(prefix))
    include, numpy_include = answer.decode().split()
    count = 0
    for path in (prefix / 'share').glob('*/cmake/*Export.cmake'):
        text = path.read_text()
        mended = re.sub(r'/opt/python/[^";]*/numpy/[^";]*', numpy_include, text)
        mended = re.sub(r'/opt/python/[^";]*/include/[^";]*', include, mended)
        if mended != text:
            path.write_text(mended)
            count += 1
    return count


def cmake_install(
    prefix: Path, build: Path, environment: 'dict[str, str]', options: 'list[str]'
) -> None:
    """Configure, build and install this package with CMake."""
    cmake = shutil.which('cmake', path=environment['PATH']) or 'cmake'
    configure = [cmake, '-S', str(ROOT), '-B', str(build), '-G', 'Ninja']
    configure += [
        '-DCMAKE_BUILD_TYPE=Release',
        '-DCMAKE_INSTALL_PREFIX={}'.format(prefix),
        '-DPython3_EXECUTABLE={}'.format(prefix / 'bin' / 'python'),
        '-DPython3_FIND_VIRTUALENV=ONLY',
        '-DBUILD_TESTING=OFF',
    ]
    run(configure + options, environment)
    run([cmake, '--build', str(build)], environment)
    run([cmake, '--install', str(build)], environment)


def remove_installed(venv: Path) -> None:
    """Remove an earlier build's files, so that a message that is gone is gone."""
    folders = [site_packages(venv) / PACKAGE, venv / 'build' / PACKAGE]
    folders += [venv / kind / PACKAGE for kind in ('include', 'lib', 'share')]
    for folder in folders:
        if folder.exists():
            shutil.rmtree(str(folder))
    for library in (venv / 'lib').glob('lib{}__*'.format(PACKAGE)):
        library.unlink()


def link_tree(venv: Path) -> None:
    """Make modules, executables, launch and config files of this tree stand as if installed."""
    site = site_packages(venv)
    (site / PACKAGE / '__init__.py').unlink()
    (site / '{}.pth'.format(PACKAGE)).write_text('{}\n'.format(ROOT))
    share = venv / 'share' / PACKAGE
    (share / 'config').symlink_to(ROOT / 'config')
    # Each by itself: `ros2 launch` does not look into linked folders.
    (share / 'launch').mkdir()
    for file in launch_files():
        (share / 'launch' / file.name).symlink_to(file)
    folder = venv / 'lib' / PACKAGE
    folder.mkdir()
    for script in (ROOT / 'scripts').iterdir():
        _, body = script.read_text().split('\n', 1)
        for target in (folder / script.name, venv / 'bin' / script.name):
            target.write_text('#!{}\n{}'.format(venv / 'bin' / 'python', body))
            target.chmod(0o755)


def site_packages(prefix: Path) -> Path:
    """Return the folder of an environment's Python packages."""
    return prefix / 'lib' / 'python{}.{}'.format(*sys.version_info) / 'site-packages'


@contextmanager
def step(number: int, title: str):
    """Print a step's title, and how long it took."""
    print('[{}/{}] {}'.format(number, STEPS, title), flush=True)
    began = time.monotonic()
    yield
    print('      done in {:.0f} s'.format(time.monotonic() - began), flush=True)


def run(command: 'list[str]', environment: 'dict[str, str]', shown: str = '') -> None:
    """Run a command; prints what matches shown as it comes, and its last lines if it fails."""
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    lines = []
    for line in process.stdout:
        lines.append(line.rstrip())
        match = re.search(shown, line) if shown else None
        if match:
            print('      {}'.format(match.group()), flush=True)
    if process.wait() != 0:
        print('\n'.join(lines[-30:]), file=sys.stderr, flush=True)
        raise SetupError('{} failed: its last lines are above'.format(' '.join(command[:4])))


if __name__ == '__main__':
    sys.exit(main())
