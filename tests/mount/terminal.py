"""A program in a terminal of its own, for tests that look at the screen. The terminal is emulated by pyte."""
import fcntl
import os
import struct
import subprocess
import termios

from harness import Skip, die_with_parent, equal, wait_until

KEYS = {"up": "\033OA", "down": "\033OB", "enter": "\r", "tab": "\t", "escape": "\033"}


class Terminal:
    def __init__(self, *command, columns=80, lines=24, term="xterm-256color", **environment):
        try:
            import pyte
        except ImportError:
            raise Skip("pyte is not installed") from None
        self.screen = pyte.Screen(columns, lines)
        self.stream = pyte.ByteStream(self.screen)
        self.raw = b""
        self.master, slave = os.openpty()
        self.resize(columns, lines)
        os.set_blocking(self.master, False)

        def become():
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
            die_with_parent()
        self.process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, preexec_fn=become,
                                        env={"PATH": os.environ["PATH"], "TERM": term, "LC_ALL": "C.UTF-8", **environment})
        os.close(slave)

    def text(self):
        """What is on the screen now."""
        try:
            while chunk := os.read(self.master, 65536):
                self.raw += chunk
                self.stream.feed(chunk)
        except OSError:  # nothing more for now, or the program has ended
            pass
        return "\n".join(line.rstrip() for line in self.screen.display)

    def shows(self, *words, but=(), where=lambda text: True):
        """Returns the screen once it has all of these words, none of the others, and is as `where` wants it: what is
        drawn may come in pieces."""
        def seen():
            text = self.text()
            good = all(word in text for word in words) and not any(word in text for word in but) and where(text)
            return text if good else None
        try:
            return wait_until(seen, "")
        except AssertionError:
            raise AssertionError(f"the screen never showed {words} without {but}:\n{self.text()}") from None

    def type(self, *keys):
        for key in keys:
            os.write(self.master, KEYS.get(key, key).encode())

    def resize(self, columns, lines):
        self.screen.resize(lines, columns)
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def ended(self, status=0):
        """Waits for its end; all that it wrote."""
        wait_until(lambda: self.text() is not None and self.process.poll() is not None, "the program ends")
        self.text()
        equal(self.process.returncode, status, f"status; on the screen: {self.text()}")
        os.close(self.master)
        return self.raw
