#include "utils/ctl_top.h"

#include <curses.h>
#include <errno.h>
#include <langinfo.h>
#include <locale.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "utils/ctl_text.h"
#include "utils/ut_clock.h"

#define KEY_ESCAPE 27
#define ESCAPE_MS 25 /* how long the rest of a key's sequence may take */

static volatile sig_atomic_t is_told_to_end;

static void on_signal(int number)
{
    (void)number;
    is_told_to_end = 1;
}

/* What is being read, and when to read next. */
struct feed {
    const struct ctl_opts *opts;
    struct ctl_reader reader;
    bool reading;
    pid_t left;       /* a reader that has not ended; no other is started until it has */
    char job[65];     /* whose trace is read, too */
    uint64_t next_ns; /* when to begin */
};

/* ---- reading ---- */

static void begin(struct feed *feed, struct ctl_top *top, uint64_t now)
{
    struct ut_err err = {""};
    struct ctl_want want = {.mount = feed->opts->mount, .timeout_ns = feed->opts->timeout_ns};
    if (feed->left && waitpid(feed->left, NULL, WNOHANG) == 0) {
        feed->next_ns = now + feed->opts->interval_ns;
        return;
    }
    feed->left = 0;
    snprintf(feed->job, sizeof feed->job, "%s", top->view == CTL_TOP_RANKS ? top->picked : "");
    want.job = *feed->job ? feed->job : NULL;
    feed->reading = !ctl_reader_start(&feed->reader, &want, &err);
    feed->next_ns = now + feed->opts->interval_ns;
    if (!feed->reading)
        snprintf(top->trouble, sizeof top->trouble, "%s", err.text);
}

/* The trace of the job that it was read for, if that is still the one. */
static void take_trace(struct ctl_top *top, const struct feed *feed)
{
    char path[96];
    snprintf(path, sizeof path, "jobs/%s/trace", feed->job);
    ctl_trace_fini(&top->trace);
    if (*feed->job && !strcmp(feed->job, top->picked))
        ctl_trace_parse(ctl_files_text(&top->now.files, path), &top->trace);
}

/* Takes what has come. True when there is something new to draw. */
static bool pump(struct feed *feed, struct ctl_top *top)
{
    struct ut_err err = {""};
    struct ctl_files files;
    struct ctl_fabric fabric;
    int rc = ctl_reader_pump(&feed->reader, &files, &err);
    if (!rc)
        return false;
    feed->left = ctl_reader_end(&feed->reader);
    feed->reading = false;
    if (rc > 0) {
        rc = ctl_fabric_build(&files, &fabric);
        if (!rc && ctl_top_take(top, &fabric, ut_clock_ns()))
            ctl_fabric_fini(&fabric);
        take_trace(top, feed);
    }
    snprintf(top->trouble, sizeof top->trouble, "%s", err.text);
    return true;
}

/* ---- keys ---- */

static void turn_to(struct ctl_top *top, enum ctl_top_view view)
{
    top->view = view;
    top->scroll = 0;
    ctl_top_order(top);
}

/* Up, down and the like: one list picks, the others scroll. */
static void move_by(struct ctl_top *top, long lines)
{
    if (top->view == CTL_TOP_JOBS)
        ctl_top_pick(top, lines);
    else if (lines < 0)
        top->scroll -= (size_t)-lines < top->scroll ? (size_t)-lines : top->scroll;
    else
        top->scroll += (size_t)lines; /* drawing keeps it within the list */
}

static void sort_next(struct ctl_top *top)
{
    if (top->view == CTL_TOP_RANKS)
        top->late_first = !top->late_first;
    else
        top->sort = (top->sort + 1) % CTL_TOP_SORTS;
    ctl_top_order(top);
}

static void act_on(struct ctl_top *top, struct feed *feed, int key)
{
    static const enum ctl_top_view after[] = {CTL_TOP_NODES, CTL_TOP_HEALTH, CTL_TOP_JOBS, CTL_TOP_NODES};
    if (key == 'q' || key == 'Q')
        top->quit = true;
    else if (key == KEY_UP || key == 'k')
        move_by(top, -1);
    else if (key == KEY_DOWN || key == 'j')
        move_by(top, 1);
    else if (key == KEY_PPAGE || key == KEY_NPAGE)
        move_by(top, key == KEY_PPAGE ? -10 : 10);
    else if (key == KEY_HOME || key == KEY_END)
        move_by(top, key == KEY_HOME ? -100000 : 100000);
    else if (key == '\t')
        turn_to(top, after[top->view]);
    else if (key == KEY_ESCAPE || key == KEY_BACKSPACE || key == KEY_LEFT)
        turn_to(top, CTL_TOP_JOBS);
    else if ((key == '\r' || key == '\n' || key == KEY_ENTER) && top->view == CTL_TOP_JOBS && *top->picked)
        turn_to(top, CTL_TOP_RANKS), feed->next_ns = 0;
    else if (key == 's')
        sort_next(top);
    else if (key == 'r')
        top->reverse = !top->reverse, ctl_top_order(top);
    else if (key == 'p' || key == ' ')
        top->paused = !top->paused;
}

/* ---- the loop ---- */

/* Sleeps until a key, a file or the time to read. */
static void wait_for_news(const struct feed *feed, const struct ctl_top *top)
{
    struct pollfd fds[2] = {{.fd = STDIN_FILENO, .events = POLLIN},
                            {.fd = feed->reading ? feed->reader.fd : -1, .events = POLLIN}};
    uint64_t now = ut_clock_ns(), until = feed->reading ? feed->reader.deadline_ns : feed->next_ns;
    int ms = top->paused && !feed->reading ? -1 : until > now ? (int)((until - now) / UT_NS_PER_MS) + 1 : 0;
    poll(fds, 2, ms);
    if (fds[0].revents & (POLLHUP | POLLERR | POLLNVAL))
        is_told_to_end = 1; /* the terminal has gone */
}

static void loop(struct ctl_top *top, struct feed *feed)
{
    bool is_new = true;
    while (!top->quit && !is_told_to_end) {
        uint64_t now = ut_clock_ns();
        if (!feed->reading && !top->paused && now >= feed->next_ns)
            begin(feed, top, now);
        if (feed->reading)
            is_new |= pump(feed, top);
        for (int key; (key = getch()) != ERR; is_new = true)
            act_on(top, feed, key);
        if (is_new)
            ctl_top_draw(top);
        is_new = false;
        if (!top->quit && !is_told_to_end)
            wait_for_news(feed, top);
    }
    if (feed->reading)
        ctl_reader_end(&feed->reader);
}

static void catch_signals(void)
{
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGHUP, &action, NULL);
}

static void set_up_screen(struct ctl_top *top, enum ctl_colour colour)
{
    cbreak();
    noecho();
    nonl();
    keypad(stdscr, TRUE);
    nodelay(stdscr, TRUE);
    set_escdelay(ESCAPE_MS);
    curs_set(0);
    top->colours = ctl_text_wants_colour(colour) && has_colors() && start_color() == OK;
    if (top->colours) {
        use_default_colors();
        init_pair(1, COLOR_RED, -1);
        init_pair(2, COLOR_YELLOW, -1);
        init_pair(3, COLOR_GREEN, -1);
    }
}

enum ctl_exit ctl_top(const struct ctl_opts *opts, struct ut_err *err)
{
    struct ctl_want want = {.mount = opts->mount, .timeout_ns = opts->timeout_ns};
    struct ctl_top top = {.sort = CTL_TOP_NAME, .late_first = true};
    struct feed feed = {.opts = opts, .reader.fd = -1, .next_ns = ut_clock_ns() + opts->interval_ns};
    struct ctl_fabric fabric;
    if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO))
        return ut_err_set(err, CTL_ERROR,
                          "top wants a terminal; fabricctl status tells the same to a script");
    if (ctl_fabric_load(&want, &fabric, err))
        return CTL_ERROR;
    setlocale(LC_CTYPE, "");
    top.unicode = !strcmp(nl_langinfo(CODESET), "UTF-8");
    SCREEN *screen = newterm(NULL, stdout, stdin);
    if (!screen || ctl_top_take(&top, &fabric, ut_clock_ns())) {
        ctl_fabric_fini(&fabric);
        return ut_err_set(err, CTL_ERROR, "top cannot draw on this terminal; is TERM right, and known here?");
    }
    catch_signals();
    set_up_screen(&top, opts->colour);
    loop(&top, &feed);
    endwin();
    delscreen(screen);
    ctl_top_fini(&top);
    return CTL_OK;
}
